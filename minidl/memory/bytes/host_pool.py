"""Allocates ranges of host memory for swapped-out tensors, in exact sizes. Never reads or writes the bytes.

A host copy may lie in several pieces, so memory is refused only if too few bytes are free, not if they are scattered.
"""

from bisect import bisect_left, bisect_right, insort

from minidl.device.clock import Extents


class HostPool:
    """An allocator for ``capacity`` bytes of host memory; one allocation may consist of several pieces.

    The free ranges are kept sorted by offset and also by size, so a bisection finds one that fits."""

    __slots__ = ("_ends", "_keys", "_peak", "_shift", "_starts", "_used", "capacity")

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"a host pool of {capacity_bytes} bytes")
        self.capacity = capacity_bytes
        self._starts = [0] if capacity_bytes else []
        self._ends = [capacity_bytes] if capacity_bytes else []
        self._shift = capacity_bytes.bit_length()
        self._keys = [capacity_bytes << self._shift] if capacity_bytes else []
        self._used = self._peak = 0

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now."""
        return self._used

    @property
    def peak_bytes(self) -> int:
        """The most bytes allocated at once."""
        return self._peak

    def allocate(self, nbytes: int) -> Extents | None:
        """Allocate ``nbytes`` as pieces (offset, nbytes); None if fewer are free. 0 bytes have no pieces: ``()``.
        Each piece needs a copy of its own, so the smallest free range that holds all bytes is taken, the lowest of
        equals. If no range is large enough, the lowest free ranges are taken."""
        if nbytes < 0:
            raise AssertionError(f"allocation of {nbytes} bytes")
        if nbytes == 0:
            return ()
        if nbytes > self.capacity - self._used:
            return None
        self._used += nbytes
        self._peak = max(self._peak, self._used)
        starts, ends = self._starts, self._ends
        fitting = bisect_left(self._keys, nbytes << self._shift)
        if fitting < len(self._keys):
            start = self._keys[fitting] & ((1 << self._shift) - 1)
            self._cut(bisect_left(starts, start), nbytes)
            return ((start, nbytes),)
        pieces = []
        while nbytes:
            start, piece = starts[0], min(ends[0] - starts[0], nbytes)
            self._cut(0, piece)
            pieces.append((start, piece))
            nbytes -= piece
        return tuple(pieces)

    def _cut(self, index: int, nbytes: int) -> None:
        """Allocate ``nbytes`` at the low end of the free range number ``index``."""
        starts, ends = self._starts, self._ends
        self._forget(starts[index], ends[index])
        starts[index] += nbytes
        if starts[index] == ends[index]:
            del starts[index], ends[index]
        else:
            self._note(starts[index], ends[index])

    def _note(self, start: int, end: int) -> None:
        insort(self._keys, end - start << self._shift | start)

    def _forget(self, start: int, end: int) -> None:
        del self._keys[bisect_left(self._keys, end - start << self._shift | start)]

    def free(self, extents: Extents) -> None:
        """Free all pieces of one allocation. Raises AssertionError if any of their bytes is free already."""
        for offset, nbytes in extents:
            self._free_range(offset, offset + nbytes)

    def limit(self, capacity_bytes: int) -> None:
        """Shrink the pool to ``capacity_bytes``. Raises AssertionError if bytes beyond these are in use."""
        starts, ends = self._starts, self._ends
        if self.capacity > capacity_bytes:
            if not starts or ends[-1] != self.capacity or starts[-1] > capacity_bytes:
                raise AssertionError(f"a host pool of {self.capacity} bytes is in use beyond {capacity_bytes}")
            self._forget(starts[-1], ends[-1])
            ends[-1] = self.capacity = capacity_bytes
            if starts[-1] == capacity_bytes:
                del starts[-1], ends[-1]
            else:
                self._note(starts[-1], capacity_bytes)

    def _free_range(self, start: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        index = bisect_right(starts, start)  # the free range on the right, if any; on the left is index - 1
        left_end = ends[index - 1] if index else 0
        right_start = starts[index] if index < len(starts) else self.capacity
        if not left_end <= start < end <= right_start:
            raise AssertionError(f"double free of host bytes {start}..{end}: only {left_end}..{right_start} are in use")
        self._used -= end - start
        if index < len(starts) and right_start == end:
            end = ends[index]
            self._forget(right_start, end)
            del starts[index], ends[index]
        if index and left_end == start:
            start = starts[index - 1]
            self._forget(start, left_end)
            ends[index - 1] = end
        else:
            starts.insert(index, start)
            ends.insert(index, end)
        self._note(start, end)

    def check(self) -> None:
        """Raise AssertionError unless free ranges are sorted, disjoint and inside the pool, and the counters right."""
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
        keys = sorted(end - start << self._shift | start for start, end in zip(self._starts, self._ends, strict=True))
        if self._keys != keys:
            raise AssertionError(f"the free ranges by size are {self._keys}, and {keys} by offset")
