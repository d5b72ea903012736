"""What an executor, and whoever calls operations, ask of the sharder: the seam between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from minidl.memory.storage import Keeper

if TYPE_CHECKING:
    from minidl.memory.storage import Storage
    from minidl.meta import Meta
    from minidl.op import Attrs, Op


class Sharding(Keeper, Protocol):
    """Runs operations on parameters in shards. It is the ``memory`` of their records."""

    def cuts(self, described: Meta) -> bool:
        """Whether a parameter of this description is cut."""

    def leaf(self, described: Meta, *, requires_grad: bool) -> Storage:
        """An uninitialised persistent leaf in shards."""

    def run(self, op: Op, inputs: tuple[Storage, ...], attrs: Attrs, given: int = 0) -> tuple[Storage, ...]:
        """Carry out one operation."""

    def refuse_copies(self, op: Op, inputs: Sequence[Storage]) -> None:
        """Raise UserError where a view is written that had to be a copy."""

    def look(self, x: Any, how: Callable[[Storage], Any], *, joined: bool) -> Any:
        """What ``how`` makes of a value: of all of it in one storage, or host copies of its shards, put together."""

    def make_leaf(self, x: Any) -> None:
        """Cut the lineage of a value's shards."""
