"""Defines PartKeeper, the interface of the two objects that run calls on tensors in parts: slices or shards.

Each handle of such a tensor has, in the place of a Storage, a record that lists the parts. The record's field
``keeper`` names the Slicer or the Sharder. Dispatch, the executor and autograd call that keeper's methods; they know
neither slices nor shards.
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
    """Makes tensors in parts, and runs calls, reads and gradients on them.
    By default nothing is in parts; ``run``, ``look`` and ``make_leaf`` have no default."""

    tracker: Tracker

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Does nothing: the record of a tensor in parts has no bytes of its own."""

    # Making tensors in parts ---------------------------------------------------------------------------------
    def upload(self, shape: Shape, dtype: DType, values: np.ndarray | None) -> Storage | None:
        """Make a leaf in parts with these values; None if a batch of this shape stays whole. Raises OutOfMemory."""
        return None

    def parameter(self, described: Meta, *, requires_grad: bool, state: bool = False) -> Storage | None:
        """Make an uninitialised parameter in parts; None if it stays whole, as always by default. Raises OutOfMemory.
        described: its shape and dtype. state: it is an optimizer's state."""
        return None

    # Calls and values ----------------------------------------------------------------------------------------
    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, donated: int = 0) -> tuple[Storage, ...]:
        """Run, or queue, a call that has an operand in parts; arguments, result and errors as ``Executor.run``."""
        raise NotImplementedError

    def before_write(self, op: Op, inputs: Sequence[Storage]) -> None:
        """Called before an operation writes one of its inputs in place. Raises UserError to refuse the write."""

    def look(self, x: Any, read: Callable[[Storage], Any], *, joined: bool) -> Any:
        """Return a value of x, a tensor in parts. Raises OutOfMemory.
        joined: True joins the parts on the device and returns ``read`` of the joined storage; False calls ``read``
        for each part and returns the host arrays concatenated."""
        raise NotImplementedError

    def flush(self) -> None:
        """Run all calls that are queued. Raises what ``Executor.run`` raises."""

    # Gradients and iterations --------------------------------------------------------------------------------
    def make_leaf(self, x: Any) -> None:
        """Make each part of x a leaf: run queued calls that compute the part, cut its lineage. Raises as ``flush``."""
        raise NotImplementedError

    def deliver(self, gradient: Any, leaf: Storage, add: Callable[[Any], None]) -> None:
        """Call ``add`` with the gradient (a Tensor) of a leaf; if queued calls compute it, after they have run."""
        add(gradient)

    def end_iteration(self, *, failed: bool = False) -> None:
        """End an iteration: run the queued calls, or drop them if the iteration has ``failed``."""
