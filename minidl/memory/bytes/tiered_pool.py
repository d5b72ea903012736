"""A host pool that a spill file continues: what does not fit into host memory gets a range of the file."""

from minidl.device.clock import Extents
from minidl.device.spill import PAGE
from minidl.memory.bytes.host_pool import HostPool


class TieredPool:
    """An allocator for host memory and a file behind it, with the methods of ``HostPool``.

    Offsets below ``memory_bytes`` are in memory, those above in the file of ``file_bytes``. Pieces in the file take
    whole pages."""

    __slots__ = ("_peak", "_start", "_used", "capacity", "file", "memory")

    def __init__(self, memory_bytes: int, file_bytes: int) -> None:
        self.memory = HostPool(memory_bytes)
        self._start = memory_bytes  # where the file begins
        self.file = HostPool(file_bytes // PAGE * PAGE)
        self.capacity = memory_bytes + self.file.capacity
        self._used = self._peak = 0

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now, without the padding of pages."""
        return self._used

    @property
    def peak_bytes(self) -> int:
        """The most bytes allocated at once."""
        return self._peak

    @property
    def spilled_peak_bytes(self) -> int:
        """The most bytes of the file allocated at once, rounded up to pages."""
        return self.file.peak_bytes

    def allocate(self, nbytes: int) -> Extents | None:
        """Allocate ``nbytes`` as pieces (offset, nbytes); None if memory and file together have too few free bytes.
        The pieces are in memory if it has enough, else in the file if that has enough, else in both."""
        pieces = self.memory.allocate(nbytes)
        if pieces is None:
            pieces = self._of_file(nbytes)
        if pieces is None:
            rest = self.memory.capacity - self.memory.used_bytes
            beyond = self._of_file(nbytes - rest)
            if beyond is not None:
                first = self.memory.allocate(rest)
                assert first is not None
                pieces = first + beyond
        if pieces is not None:
            self._used += nbytes
            self._peak = max(self._peak, self._used)
        return pieces

    def _of_file(self, nbytes: int) -> Extents | None:
        pieces = self.file.allocate(-(-nbytes // PAGE) * PAGE)
        if pieces is None:
            return None
        found, start = [], self._start
        for at, size in pieces:
            found.append((start + at, min(size, nbytes)))
            nbytes -= size
        return tuple(found)

    def free(self, extents: Extents) -> None:
        """Free all pieces of one allocation. Raises AssertionError if any of their bytes is free already."""
        start = self._start
        for at, nbytes in extents:
            if at < start:
                self.memory.free(((at, nbytes),))
            else:
                self.file.free(((at - start, -(-nbytes // PAGE) * PAGE),))
            self._used -= nbytes

    def limit(self, memory_bytes: int) -> None:
        """Shrink the memory to ``memory_bytes``; the file stays. Raises AssertionError if more memory is in use."""
        self.memory.limit(memory_bytes)
        self.capacity = self.memory.capacity + self.file.capacity

    def check(self) -> None:
        """Raise AssertionError unless both pools are consistent, and the counters right."""
        self.memory.check()
        self.file.check()
        if not 0 <= self._used <= min(self._peak, self.memory.used_bytes + self.file.used_bytes):
            raise AssertionError(f"{self._used} bytes are counted, {self.memory.used_bytes} are used of memory and "
                                 f"{self.file.used_bytes} of the file, peak {self._peak}")
