"""Host memory for saved tensors: buffers by size, used again, up to a number of bytes. Knows no tensors and no plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HostPool:
    """Buffers of host memory.

    capacity  bytes that may be in use at once.
    used      bytes in use; most: the most so far.
    """

    def __init__(self, capacity: int, allocate: Callable[[int], Any]) -> None:
        """allocate: makes a buffer of so many bytes."""
        self.capacity = capacity
        self.used = self.most = 0
        self._allocate = allocate
        self._free: dict[int, list[Any]] = {}
        self._kept = 0  # bytes of the free ones

    def take(self, nbytes: int) -> Any | None:
        """A buffer of exactly so many bytes; None if the capacity does not allow it."""
        if self.used + nbytes > self.capacity:
            return None
        free = self._free.get(nbytes)
        if free:
            self._kept -= nbytes
            buffer = free.pop()
        else:
            # Free buffers of other sizes count, too: what is in use and what is kept stays within the capacity.
            while self.used + self._kept + nbytes > self.capacity and self._drop_one():
                pass
            buffer = self._allocate(nbytes)
        self.used += nbytes
        self.most = max(self.most, self.used)
        return buffer

    def give(self, nbytes: int, buffer: Any) -> None:
        """Take a buffer back, to be used again."""
        self.used -= nbytes
        self._kept += nbytes
        self._free.setdefault(nbytes, []).append(buffer)

    def leave(self, nbytes: int) -> None:
        """A buffer is not ours any more."""
        self.used -= nbytes

    def free(self) -> list[Any]:
        """The buffers that are kept to be used again."""
        return [buffer for free in self._free.values() for buffer in free]

    def _drop_one(self) -> bool:
        for nbytes, free in self._free.items():
            if free:
                free.pop()
                self._kept -= nbytes
                return True
        return False
