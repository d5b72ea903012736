"""A pool of host buffers, reused by size, up to a number of bytes. It knows no tensors and no plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HostPool:
    """Buffers of host memory, which are kept for reuse when they are given back.

    capacity  the largest number of bytes that buffers in use may have together.
    used      bytes of the buffers in use; most: the peak of ``used`` so far.
    """

    def __init__(self, capacity: int, allocate: Callable[[int], Any]) -> None:
        """Make an empty pool. allocate: called with a number of bytes, returns a new buffer of that size."""
        self.capacity = capacity
        self.used = self.most = 0
        self._allocate = allocate
        self._free: dict[int, list[Any]] = {}
        self._kept = 0  # bytes of the free buffers

    def take(self, nbytes: int) -> Any | None:
        """Return a buffer of exactly ``nbytes`` bytes; None if the capacity does not allow it."""
        if self.used + nbytes > self.capacity:
            return None
        free = self._free.get(nbytes)
        if free:
            self._kept -= nbytes
            buffer = free.pop()
        else:
            # Used and free buffers together stay within the capacity, so free ones of other sizes go first.
            while self.used + self._kept + nbytes > self.capacity and self._drop_one():
                pass
            buffer = self._allocate(nbytes)
        self.used += nbytes
        if self.used > self.most:
            self.most = self.used
        return buffer

    def give(self, nbytes: int, buffer: Any) -> None:
        """Take back a buffer of ``nbytes`` bytes, and keep it for a later ``take`` of this size."""
        self.used -= nbytes
        self._kept += nbytes
        free = self._free.get(nbytes)
        if free is None:
            free = self._free[nbytes] = []
        free.append(buffer)

    def leave(self, nbytes: int) -> None:
        """Stop counting a buffer of ``nbytes`` bytes as in use: it is the program's now and does not come back."""
        self.used -= nbytes

    def free(self) -> list[Any]:
        """Return the unused buffers that are kept for reuse."""
        return [buffer for free in self._free.values() for buffer in free]

    def _drop_one(self) -> bool:
        for nbytes, free in self._free.items():
            if free:
                free.pop()
                self._kept -= nbytes
                return True
        return False
