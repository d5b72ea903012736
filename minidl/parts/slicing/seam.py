"""What an executor, and whoever calls operations, ask of the slicer: the seam between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from minidl.memory.storage import Keeper

if TYPE_CHECKING:
    import numpy as np

    from minidl.memory.storage import Storage
    from minidl.meta import DType, Shape
    from minidl.op import Attrs, Op
    from minidl.parts.slicing.origins import Origins


class Slicing(Keeper, Protocol):
    """Runs operations on tensors in slices. It is the ``memory`` of their records."""

    origins: Origins

    @property
    def pending(self) -> bool:
        """Whether operations wait to be carried out."""

    def cuts(self, shape: Shape) -> bool:
        """Whether a batch of this shape is cut."""

    def upload(self, shape: Shape, dtype: DType, data: np.ndarray | None) -> Storage:
        """A leaf in slices."""

    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, given: int = 0) -> tuple[Storage, ...]:
        """Carry out, or queue, one operation."""

    def flush(self) -> None:
        """Carry out all that waits."""

    def afterwards(self, action: Callable[[], None]) -> None:
        """Do something once all that waits has been carried out."""

    def real(self, x: Storage) -> Storage:
        """One storage with all of a value, with one use for the caller."""

    def taken(self, x: Storage) -> Storage:
        """Likewise, of a value that its only handle gives up."""

    def look(self, x: Any, how: Callable[[Storage], Any], *, joined: bool) -> Any:
        """What ``how`` makes of a value: of all of it in one storage, or host copies of its parts, put together."""

    def make_leaf(self, x: Any) -> None:
        """Cut the lineage of a value's parts."""

    def end_iteration(self, *, failed: bool = False) -> None:
        """The boundary of iterations."""
