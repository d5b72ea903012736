"""Page-locked host memory, given out in exact sizes. Knows ranges of bytes; never touches bytes, devices or owners.

A host copy is only ever copied to and from, so it may lie in several pieces: memory is refused only when there are
too few free bytes, never because they are scattered.
"""

from bisect import bisect_right

from minidl.device.clock import Extents


class HostPool:
    """``capacity_bytes`` of host memory. Free ranges are kept sorted by offset, and no two of them touch."""

    __slots__ = ("_ends", "_peak", "_starts", "_used", "capacity")

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"a host pool of {capacity_bytes} bytes")
        self.capacity = capacity_bytes
        self._starts = [0] if capacity_bytes else []
        self._ends = [capacity_bytes] if capacity_bytes else []
        self._used = self._peak = 0

    @property
    def used_bytes(self) -> int:
        """Bytes given out now."""
        return self._used

    @property
    def peak_bytes(self) -> int:
        """The most bytes given out at once."""
        return self._peak

    def allocate(self, nbytes: int) -> Extents | None:
        """Pieces of ``nbytes`` in total, or None if fewer are free. No bytes are no pieces: ``()``, which is not None.

        The lowest free range that holds all of them if there is one, because each piece is a copy of its own to
        launch; otherwise the lowest free ranges, until it is enough.
        """
        if nbytes < 0:
            raise AssertionError(f"allocation of {nbytes} bytes")
        if nbytes == 0:
            return ()
        if nbytes > self.capacity - self._used:
            return None
        self._used += nbytes
        self._peak = max(self._peak, self._used)
        starts, ends = self._starts, self._ends
        for index, start in enumerate(starts):
            if ends[index] - start >= nbytes:
                if ends[index] - start == nbytes:
                    del starts[index], ends[index]
                else:
                    starts[index] = start + nbytes
                return ((start, nbytes),)
        pieces = []
        taken = 0  # ranges used up; the last one is only cut, unless it fits exactly
        while nbytes:
            start, end = starts[taken], ends[taken]
            piece = min(end - start, nbytes)
            pieces.append((start, piece))
            nbytes -= piece
            if start + piece == end:
                taken += 1
            else:
                starts[taken] = start + piece
        del starts[:taken], ends[:taken]
        return tuple(pieces)

    def free(self, extents: Extents) -> None:
        """Give all pieces of one allocation back. Raises AssertionError if any of their bytes is free already."""
        for offset, nbytes in extents:
            self._free_range(offset, offset + nbytes)

    def limit(self, capacity_bytes: int) -> None:
        """Be smaller from now on. What is given out must lie below; raises AssertionError otherwise."""
        starts, ends = self._starts, self._ends
        if self.capacity > capacity_bytes:
            if not starts or ends[-1] != self.capacity or starts[-1] > capacity_bytes:
                raise AssertionError(f"a host pool of {self.capacity} bytes is in use beyond {capacity_bytes}")
            ends[-1] = self.capacity = capacity_bytes
            if starts[-1] == capacity_bytes:
                del starts[-1], ends[-1]

    def _free_range(self, start: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        index = bisect_right(starts, start)  # the free range on the right, if any; on the left is index - 1
        left_end = ends[index - 1] if index else 0
        right_start = starts[index] if index < len(starts) else self.capacity
        if not left_end <= start < end <= right_start:
            raise AssertionError(f"double free of host bytes {start}..{end}: only {left_end}..{right_start} are in use")
        self._used -= end - start
        joins_left = index > 0 and left_end == start
        joins_right = index < len(starts) and right_start == end
        if joins_left and joins_right:
            ends[index - 1] = ends[index]
            del starts[index], ends[index]
        elif joins_left:
            ends[index - 1] = end
        elif joins_right:
            starts[index] = start
        else:
            starts.insert(index, start)
            ends.insert(index, end)

    def check(self) -> None:
        """Raise AssertionError unless free ranges are ascending, apart, not empty and inside, and the counters true."""
        if len(self._starts) != len(self._ends):
            raise AssertionError(f"{len(self._starts)} starts and {len(self._ends)} ends of free ranges")
        free, left_end = 0, -1
        for start, end in zip(self._starts, self._ends, strict=True):
            if start <= left_end:
                raise AssertionError(f"the free range {start}..{end} touches the one that ends at {left_end}")
            if end <= start or end > self.capacity:
                raise AssertionError(f"the free range {start}..{end} of {self.capacity} bytes")
            free += end - start
            left_end = end
        if self.capacity - free != self._used or self._peak < self._used:
            raise AssertionError(f"{self.capacity - free} bytes are used, counted {self._used}, peak {self._peak}")
