"""Page-locked memory through which host arrays reach the device: a ring, so that the host seldom waits.

An array is copied into the ring and from there to the device in stream order; the caller may forget it at once. Bytes
of the ring are taken again when the compute stream has passed their copy. The ring grows to twice the largest array,
so that one can be filled while another is on its way. Knows addresses and positions; no tensors.
"""

import ctypes
from collections import deque

import numpy as np

from minidl.device.clock import COMPUTE
from minidl.device.cuda.streams import EventStreams
from minidl.meta import aligned

LEAST_BYTES = 1 << 20


class Staging:
    """A ring of page-locked bytes in front of the compute stream."""

    def __init__(self, streams: EventStreams) -> None:
        self._streams = streams
        self._address = self._capacity = self._next = 0
        self._busy: deque[tuple[int, int, int]] = deque()  # (start, end, position of the compute stream), oldest first

    def upload(self, address: int, data: np.ndarray) -> None:
        """Copy a contiguous host array to device memory, after what the compute stream was given before."""
        if not data.nbytes:
            return
        assert data.flags.c_contiguous
        start = self._take(data.nbytes)
        ctypes.memmove(self._address + start, data.ctypes.data, data.nbytes)
        streams = self._streams
        streams.vendor.copy(address, self._address + start, data.nbytes, streams.handles[COMPUTE])
        # The work that this is part of ends at the next position.
        self._busy.append((start, start + data.nbytes, streams.positions[COMPUTE] + 1))

    def close(self) -> None:
        """Give the memory back; copies out of it must have ended."""
        if self._capacity:
            self._streams.vendor.free_host(self._address)
        self._address = self._capacity = self._next = 0
        self._busy.clear()

    def _take(self, nbytes: int) -> int:
        """Where the next ``nbytes`` go."""
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
        """Whether the oldest bytes lie behind those taken last, in a ring that has just begun anew."""
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
