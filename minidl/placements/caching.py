"""Segments that stay reserved, as PyTorch's caching allocator places: requests are served from what was freed in them.

    round a request up to 512 bytes; up to 1 MiB it is small, and the two kinds never share a segment
    take the smallest free piece of a segment of its kind; split it if the rest is worth it (small: 512 bytes or
        more; large: more than 1 MiB), else all of it is taken
    if there is none, reserve a segment: 2 MiB for small requests, 20 MiB for large ones below 10 MiB, and for what is
        larger one of its own, rounded up to 2 MiB
    if there is no room for it, let go of segments that are all free, and try again

Free neighbours are united inside a segment only, and nothing is ever moved, so free bytes may be of the wrong kind, or
scattered. PyTorch asks the driver for segments, and what an address space has in plenty is never short of order; here
they lie in one arena. It also fails when a segment of the usual size does not fit; here a last one takes what is left,
if that holds the request. (c10/cuda/CUDACachingAllocator.cpp.)
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minidl.placements.placement import Hole, Place, Placement


class Segment(NamedTuple):
    """Bytes that are reserved for small or for large blocks, from ``offset`` up to, not including, ``end``."""

    offset: int
    end: int
    small: bool


@dataclass(frozen=True, slots=True)
class Reserved(Place):
    """A place in a segment that has still to be reserved."""

    segment: Segment


class Caching(Placement):
    """``unit`` is what requests are rounded to (bytes; a multiple of the arena's alignment); all other sizes follow
    from it as they do from PyTorch's 512."""

    name = "caching"
    compacts = False

    def __init__(self, *, unit: int = 512) -> None:
        self.unit = unit
        self.most_small = 2048 * unit  # 1 MiB: the largest small request, and what a large one may waste
        self.small_segment = 4096 * unit  # 2 MiB
        self.large_segment = 40_960 * unit  # 20 MiB
        self.least_alone = 20_480 * unit  # 10 MiB: from here on a request has a segment of its own
        self._segments: list[Segment] = []  # by address

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place | None:
        """In a cached piece, or at the low end of a segment that would have to be reserved."""
        size = _rounded(nbytes, self.unit)
        small = size <= self.most_small
        pieces = [piece for hole in holes for piece, segment in self._pieces(hole)
                  if segment is not None and segment.small == small and piece.size >= size]
        if pieces:
            best = min(pieces, key=lambda piece: (piece.size, piece.offset))
            return Place(best.offset, self._split(size, best.size, small))
        usual = (self.small_segment if small else self.large_segment if size < self.least_alone
                 else _rounded(size, self.small_segment))
        for least, release in ((usual, False), (usual, True), (size, True)):
            room = [piece for hole in holes for piece, segment in self._pieces(hole, release=release)
                    if segment is None and piece.size >= least]
            if room:
                lowest = min(room)
                reserved = min(usual, lowest.size)
                return Reserved(lowest.offset, self._split(size, reserved, small),
                                Segment(lowest.offset, lowest.offset + reserved, small))
        return None

    def taken(self, place: Place) -> None:
        """Reserve the segment that this place needs, in the stead of those that were let go of for it."""
        if isinstance(place, Reserved):
            new = place.segment
            self._segments = [s for s in self._segments if s.end <= new.offset or new.end <= s.offset]
            insort(self._segments, new)

    def _split(self, size: int, whole: int, small: bool) -> int:
        """How much of a piece a block takes: its size, or all, if the rest would be too small for others."""
        rest = whole - size
        return size if (rest >= self.unit if small else rest > self.most_small) else whole

    def _pieces(self, hole: Hole, *, release: bool = False) -> Iterator[tuple[Hole, Segment | None]]:
        """A hole, cut where segments begin and end; None stands for what no segment has reserved. With ``release``
        segments that are all free count as none."""
        start, end = hole.offset, hole.end
        segments = self._segments
        index = max(bisect_right(segments, start, key=lambda segment: segment.offset) - 1, 0)
        while index < len(segments) and segments[index].offset < end:
            segment = segments[index]
            index += 1
            if segment.end <= start or (release and hole.offset <= segment.offset and segment.end <= end):
                continue
            if start < segment.offset:
                yield Hole(start, segment.offset - start), None
                start = segment.offset
            inside = min(segment.end, end) - start
            yield Hole(start, inside), segment
            start += inside
        if start < end:
            yield Hole(start, end - start), None


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
