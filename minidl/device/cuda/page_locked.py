"""The host pool's page-locked memory, locked chunk by chunk when copies first reach it.

Locking takes a third of a second per GiB, and other programs cannot use locked memory: so only the part that a run
reaches is locked. The system may refuse a chunk. Then the pool shrinks to the memory locked so far, and the engine
continues with that. Knows the seam and offsets in the pool; no tensors.
"""

import warnings

from minidl.device.clock import Extents
from minidl.device.cuda.seam import Vendor
from minidl.errors import DeviceError, HostShort
from minidl.outside.units import format_bytes

CHUNK_BYTES = 2**30


class PageLocked:
    """A pool of ``nbytes`` of page-locked host memory, in chunks of ``chunk_bytes``; the last chunk may be shorter."""

    def __init__(self, vendor: Vendor, nbytes: int, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._vendor = vendor
        self._chunk_bytes = chunk_bytes
        self._nbytes = nbytes
        self._chunks: list[int] = []  # addresses, in the order of the pool's offsets

    @property
    def locked_bytes(self) -> int:
        """The bytes locked so far, from the pool's beginning."""
        return min(self._nbytes, len(self._chunks) * self._chunk_bytes)

    def pieces(self, host: Extents) -> list[tuple[int, int]]:
        """Lock these extents; return (address, bytes) of their pieces, split at chunks.
        Raises HostShort if the system refuses to lock so much."""
        found = []
        for start, size in host:
            self._lock(start + size)
            while size:
                number, within = divmod(start, self._chunk_bytes)
                piece = min(size, self._chunk_bytes - within)
                found.append((self._chunks[number] + within, piece))
                start, size = start + piece, size - piece
        return found

    def close(self) -> None:
        """Free all chunks; copies from and to them must have ended."""
        while self._chunks:
            self._vendor.free_host(self._chunks.pop())

    def _lock(self, end: int) -> None:
        """Lock all chunks up to an offset. Raises HostShort if the system refuses."""
        while self.locked_bytes < end:
            try:
                chunk = self._vendor.allocate_host(min(self._chunk_bytes, self._nbytes - self.locked_bytes))
            except DeviceError as error:
                had, wanted = format_bytes(self.locked_bytes), format_bytes(self._nbytes)
                words = f"only {had} of {wanted} of page-locked memory could be allocated; using that: {error}"
                warnings.warn(words, RuntimeWarning, stacklevel=2)
                raise HostShort(words, had_bytes=self.locked_bytes) from error
            self._chunks.append(chunk)
