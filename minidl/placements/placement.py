"""The interface of a placement, which chooses the address of a new block in an arena. Nothing here acts.

The arena owns blocks, their neighbours and their marks, so no placement can make two blocks overlap, or forget who has
used a byte. A placement sees the holes that are large enough, and answers with an address and a size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Hole(NamedTuple):
    """Free bytes between two owned blocks, or an owned block and an end of the arena: all of them, since the arena
    unites free neighbours at once. ``offset`` and ``size`` are in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block goes: ``size`` bytes from ``offset`` on, all of them in one hole.

    ``size`` is what was asked for, or more: what the placement rounds up, or does not split off.
    """

    offset: int
    size: int


class Placement(ABC):
    """Where new blocks go. One object serves one arena.

    ``compacts``: whether blocks may be put anywhere else, too: slid together when free bytes are scattered, or to the
    address that a plan has for them. False is what most allocators do: an address is theirs to choose, and final.
    """

    name = ""
    compacts = True

    @abstractmethod
    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place | None:
        """Where ``nbytes`` go, or None if this placement has no place for them.

        nbytes  a multiple of the arena's alignment, as every offset and size must be.
        holes   all that have ``nbytes`` or more, by size and then by address: the first is the best fit.
        high    the block will live long: who has two ends keeps one of them for such blocks.

        Changes nothing: the arena also asks about holes that there would be if something was evicted.
        """

    def taken(self, place: Place) -> None:  # noqa: B027 - most placements remember nothing
        """A block was put where :meth:`place` said. Here a placement that remembers does so."""
