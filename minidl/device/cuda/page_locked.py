"""The host pool's page-locked memory, locked chunk by chunk as copies first reach it.

Locking takes a third of a second a GiB, and what is locked is nobody else's: so no more of it is had than a run comes
to use. A system may refuse a chunk. Then the pool is as large as what is locked by then, and the engine goes on with
that. Knows the seam and offsets in the pool; no tensors.
"""

import warnings

from minidl.device.clock import Extents
from minidl.device.cuda.seam import Vendor
from minidl.errors import DeviceError, HostShort
from minidl.outside.units import format_bytes

CHUNK_BYTES = 2**30


class PageLocked:
    """``nbytes`` of host memory, in chunks of ``chunk_bytes``; the last one is as long as is left."""

    def __init__(self, vendor: Vendor, nbytes: int, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._vendor = vendor
        self._chunk_bytes = chunk_bytes
        self._nbytes = nbytes
        self._chunks: list[int] = []  # addresses, in the order of the pool's offsets

    @property
    def locked_bytes(self) -> int:
        """From the pool's beginning, as far as it is locked."""
        return min(self._nbytes, len(self._chunks) * self._chunk_bytes)

    def pieces(self, host: Extents) -> list[tuple[int, int]]:
        """Address and bytes of each piece of these extents, one for each chunk that they lie in. Raises HostShort."""
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
        """Give all of it back; copies out of it and into it must have ended."""
        while self._chunks:
            self._vendor.free_host(self._chunks.pop())

    def _lock(self, end: int) -> None:
        """Lock all chunks up to an offset."""
        while self.locked_bytes < end:
            try:
                chunk = self._vendor.allocate_host(min(self._chunk_bytes, self._nbytes - self.locked_bytes))
            except DeviceError as error:
                had, wanted = format_bytes(self.locked_bytes), format_bytes(self._nbytes)
                words = f"{had} of {wanted} of page-locked memory could be had, which must do: {error}"
                warnings.warn(words, RuntimeWarning, stacklevel=2)
                raise HostShort(words, had_bytes=self.locked_bytes) from error
            self._chunks.append(chunk)
