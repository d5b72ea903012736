"""Segments that stay reserved, like PyTorch's caching allocator: requests are served from freed pieces of segments.

  round a request up to 512 bytes; up to 1 MiB it is small, and small and large requests never share a segment
  take the smallest sufficient free piece of a segment of its kind; split it if the rest is large enough (small: 512
      bytes or more; large: more than 1 MiB), else take all of it
  if there is none, reserve a segment: 2 MiB for small requests, 20 MiB for large ones below 10 MiB, and for larger
      ones a segment of their own, rounded up to 2 MiB
  if there is no room for the segment, release segments that are entirely free, and try again

Free neighbours are merged only within a segment, and nothing is ever moved, so free bytes may be of the wrong kind or
fragmented. PyTorch gets segments from the driver, anywhere in a large address space; here they share one arena, which
can fragment. PyTorch also fails if a segment of the usual size does not fit; here a last segment takes what is left, if
that holds the request. (c10/cuda/CUDACachingAllocator.cpp.)
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minidl.placements.placement import Hole, Place, Placement


class Segment(NamedTuple):
    """A range of bytes reserved for small or for large blocks, from ``offset`` up to, not including, ``end``."""

    offset: int
    end: int
    small: bool


@dataclass(frozen=True, slots=True)
class Reserved(Place):
    """A place in a segment that is reserved only when the place is taken."""

    segment: Segment


class Caching(Placement):
    """PyTorch's caching placement.

    ``unit``: requests are rounded up to a multiple of this many bytes, itself a multiple of the arena's alignment. The
    other sizes follow from it.
    """

    name = "caching"
    compacts = False

    def __init__(self, *, unit: int = 512) -> None:
        self.unit = unit
        self.most_small = 2048 * unit  # 1 MiB: the largest small request, and what a large one may waste
        self.small_segment = 4096 * unit  # 2 MiB
        self.large_segment = 40_960 * unit  # 20 MiB
        self.least_alone = 20_480 * unit  # 10 MiB: from this size on a request gets a segment of its own
        self._segments: list[Segment] = []  # by address

    def place(self, nbytes: int, holes: Sequence[Hole], *, high: bool) -> Place | None:
        """Return a place in a free piece of a segment, or at the low end of a new segment; None if there is no room."""
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
        """Reserve the segment that this place needs, and forget the empty segments that were released for it."""
        if isinstance(place, Reserved):
            new = place.segment
            self._segments = [s for s in self._segments if s.end <= new.offset or new.end <= s.offset]
            insort(self._segments, new)

    def _split(self, size: int, whole: int, small: bool) -> int:
        """Return the bytes that a block takes of a free piece: ``size``, or ``whole`` if the rest would be too small.
        """
        rest = whole - size
        return size if (rest >= self.unit if small else rest > self.most_small) else whole

    def _pieces(self, hole: Hole, *, release: bool = False) -> Iterator[tuple[Hole, Segment | None]]:
        """Yield a hole cut at segment borders, with None for parts outside segments.
        With ``release``, segments that are entirely free count as outside."""
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
