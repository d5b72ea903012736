"""The interface of a placement, which chooses the address of a new block in an arena. It changes nothing itself.

The arena owns blocks, their neighbours and their marks (the positions of streams that last used a block), so no
placement can make two blocks overlap or lose a mark. A placement gets the holes that are large enough, and returns an
address and a size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Hole(NamedTuple):
    """A maximal range of free bytes between blocks, or a block and an end of the arena. ``offset``, ``size``: bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first byte after the hole."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a block: ``size`` bytes from ``offset`` on, all of them in one hole.

    ``size`` is the requested size or more, if the placement rounds up or does not split the hole.
    """

    offset: int
    size: int


class Placement(ABC):
    """A strategy for the addresses of new blocks. Each arena has its own object.

    ``compacts``: True if the arena may move blocks: slide them together when memory is fragmented, or put them at a
    plan's addresses. With False, as in most allocators, the placement's address is final.
    ``addresses``: False for a memory in which only bytes are counted, which no device that computes can have.
    """

    name = ""
    compacts = True
    addresses = True

    @abstractmethod
    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place | None:
        """Return the place of a new block of ``nbytes``, or None if this placement puts it into none of the holes.

        nbytes  a multiple of the arena's alignment, as every offset and size must be.
        holes   all holes of at least ``nbytes``, by size and then by address: the first is the best fit.
        high    True for a long-lived block; a placement with two ends keeps one of them for such blocks.

        It must not change any state: the arena also asks about holes that would exist after an eviction.
        """

    def taken(self, place: Place) -> None:  # noqa: B027 - most placements remember nothing
        """Told by the arena that a block now occupies a place that :meth:`place` returned. The default does nothing."""
