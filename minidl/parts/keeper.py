"""The keeper of tensors that are several storages: the one way by which calls, reads and gradients reach it.

A tensor in parts has a record in the place of its storage. The record's ``memory`` is its keeper, an object of
``parts/``. Dispatch, the executor and autograd ask an operand's memory; they know neither slices nor shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from minidl.memory.storage import Storage
    from minidl.memory.tracker import Tracker
    from minidl.meta import DType, Meta, Shape
    from minidl.op import Attrs, Op


class PartKeeper:
    """Keeps tensors in parts. The defaults do nothing."""

    tracker: Tracker

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Nothing to free: a tensor in parts has no bytes of its own."""

    # Making tensors in parts ---------------------------------------------------------------------------------
    def upload(self, shape: Shape, dtype: DType, values: np.ndarray | None) -> Storage | None:
        """A leaf in parts with these values; None if a batch of this shape stays whole. Raises OutOfMemory."""
        return None

    def parameter(self, described: Meta, *, requires_grad: bool) -> Storage | None:
        """An uninitialised parameter in parts; None if it stays whole. Raises OutOfMemory."""
        return None

    # Calls and values ----------------------------------------------------------------------------------------
    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, donated: int = 0) -> tuple[Storage, ...]:
        """Run, or queue, a call that has an operand in parts; arguments, result and errors as ``Executor.run``."""
        raise NotImplementedError

    def before_write(self, op: Op, inputs: Sequence[Storage]) -> None:
        """A call in place is about to run; any keeper may run what must come first. Raises UserError to refuse it."""

    def look(self, x: Any, read: Callable[[Storage], Any], *, joined: bool) -> Any:
        """Apply ``read`` to a tensor in parts: to one storage with all of it, or else to each part, and join the host
        copies. Raises OutOfMemory."""
        raise NotImplementedError

    def flush(self) -> None:
        """Run all calls that are queued. Raises what the executor raises."""

    # Gradients and iterations --------------------------------------------------------------------------------
    def make_leaf(self, x: Any) -> None:
        """Cut the lineage of a tensor's parts."""
        raise NotImplementedError

    def deliver(self, gradient: Any, leaf: Storage, add: Callable[[Any], None]) -> None:
        """Call ``add`` with a gradient (a Tensor) that has arrived at a leaf, once its value is known."""
        add(gradient)

    def end_iteration(self, *, failed: bool = False) -> None:
        """An iteration ends: nothing stays queued."""
