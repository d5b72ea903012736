"""A ring of page-locked memory through which host arrays are copied to the device, so that the host seldom waits.

An array is copied into the ring and from there to the device in stream order; the caller may free it at once. Bytes of
the ring are reused when the compute stream has passed their copy. The ring grows to twice the largest array, so that
one array can be written while another is being copied. Several threads write a large array: one alone writes some
2 GB/s into page-locked memory, and a batch of 256 images has 154 MB. Knows addresses and positions; no tensors.
"""

import ctypes
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from minidl.device.clock import COMPUTE
from minidl.device.cuda.streams import EventStreams
from minidl.meta import aligned

LEAST_BYTES = 1 << 20
WRITERS = 4
PIECE_BYTES = 2 << 20  # an array of fewer bytes is written by the calling thread


class Staging:
    """A ring buffer of page-locked bytes, through which host arrays are copied to the device."""

    def __init__(self, streams: EventStreams) -> None:
        self._streams = streams
        self._address = self._capacity = self._next = 0
        self._busy: deque[tuple[int, int, int]] = deque()  # (start, end, position of the compute stream), oldest first

    def upload(self, address: int, data: np.ndarray) -> None:
        """Copy a contiguous host array to device memory, after the compute stream's earlier work.
        The array may be changed as soon as this returns."""
        if not data.nbytes:
            return
        assert data.flags.c_contiguous
        start = self._take(data.nbytes)
        self._write(self._address + start, data)
        streams = self._streams
        streams.vendor.copy(address, self._address + start, data.nbytes, streams.handles[COMPUTE])
        # The work that this is part of ends at the next position.
        self._busy.append((start, start + data.nbytes, streams.positions[COMPUTE] + 1))

    @cached_property
    def _writers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(WRITERS, "minidl-staging")

    def _write(self, address: int, data: np.ndarray) -> None:
        """Copy a contiguous array's bytes to an address in host memory; several threads copy a large array."""
        source, nbytes = data.ctypes.data, data.nbytes
        if nbytes < PIECE_BYTES:
            ctypes.memmove(address, source, nbytes)
            return
        piece = max(PIECE_BYTES, aligned(-(-nbytes // WRITERS)))

        def write(at: int) -> None:
            ctypes.memmove(address + at, source + at, min(piece, nbytes - at))  # which lets other threads run
        list(self._writers.map(write, range(0, nbytes, piece)))

    def close(self) -> None:
        """Free the memory; copies from it must have ended."""
        if self._capacity:
            self._streams.vendor.free_host(self._address)
        self._address = self._capacity = self._next = 0
        self._busy.clear()

    def _take(self, nbytes: int) -> int:
        """Reserve ``nbytes`` of the ring and return their offset; wait if earlier copies still read these bytes."""
        if 2 * aligned(nbytes) > self._capacity:
            self._grow(2 * aligned(nbytes))
        start = self._next if self._next + nbytes <= self._capacity else 0
        while self._busy:
            first, end, position = self._busy[0]
            if not (start < end and first < start + nbytes or self._wrapped(start, first)):
                break
            if position > self._streams.positions[COMPUTE]:  # part of the work that is being issued now
                self._streams.mark(COMPUTE)
            self._streams.synchronize(COMPUTE, position)
            self._busy.popleft()
        self._next = start + aligned(nbytes)
        return start

    def _wrapped(self, start: int, first: int) -> bool:
        """Return True if the ring has just restarted and its oldest bytes are after the newest."""
        return start == 0 and first >= self._next > 0

    def _grow(self, capacity: int) -> None:
        if self._busy:
            if self._busy[-1][2] > self._streams.positions[COMPUTE]:
                self._streams.mark(COMPUTE)
            self._streams.synchronize(COMPUTE, self._streams.positions[COMPUTE])
        vendor = self._streams.vendor
        self.close()
        self._capacity = max(capacity, LEAST_BYTES)
        self._address = vendor.allocate_host(self._capacity)
