"""Page-locked host memory: buffers of exact sizes, cut from large ranges (slabs) that are locked once.

PyTorch's own page-locked memory rounds each buffer up to a power of two, which takes up to twice the memory. Here a
buffer takes its bytes rounded up to 512. A buffer is a storage; its bytes are free again after its last reference.
"""

import mmap
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from minidl.errors import UserError
from minidl.outside.units import format_bytes

GRAIN = 512
SLAB = 256 << 20


class _Pages(mmap.mmap):
    """Host memory that is page-locked for as long as it exists.
    unlock: called before the memory is freed, because the driver counts its addresses as locked until then, and new
    memory may get the same ones."""

    unlock: Callable[[], Any] | None = None

    def __del__(self) -> None:
        if self.unlock is not None:
            self.unlock()


class _Slab:
    """A large range of page-locked host memory, from which buffers are cut. holes: its free parts, offset -> bytes."""

    def __init__(self, nbytes: int) -> None:
        self.memory = _Pages(-1, nbytes)
        self.view = memoryview(self.memory)
        self.holes = {0: nbytes}

    def cut(self, nbytes: int) -> int | None:
        """Take bytes from the smallest hole that is large enough; return their offset, or None if there is none."""
        fitting = [(size, offset) for offset, size in self.holes.items() if size >= nbytes]
        if not fitting:
            return None
        size, offset = min(fitting)
        del self.holes[offset]
        if size > nbytes:
            self.holes[offset + nbytes] = size - nbytes
        return offset

    def fill(self, offset: int, nbytes: int) -> None:
        """Free the ``nbytes`` bytes at ``offset``, and join them with the holes beside them."""
        below = next((at for at, size in self.holes.items() if at + size == offset), None)
        if below is not None:
            offset, nbytes = below, nbytes + self.holes.pop(below)
        nbytes += self.holes.pop(offset + nbytes, 0)
        self.holes[offset] = nbytes


class PageLocked:
    """Cuts page-locked buffers from large slabs of host memory. locked: bytes of all slabs so far."""

    def __init__(self, cuda: Any, most: int, slab: int = SLAB) -> None:
        """Begin without a slab. cuda: its ``cudart().cudaHostRegister`` locks pages. slab: usual bytes of a slab.
        most: bytes that all buffers may have together; no slab is larger, except for a single larger buffer."""
        self.cuda, self.most, self.slab = cuda, most, slab
        self.locked = 0
        self._slabs: list[_Slab] = []
        self._views: dict[int, weakref.ref[memoryview]] = {}  # by a running number, since addresses recur
        self._made = 0
        self._ended: deque[tuple[_Slab, int, int, int]] = deque()  # freed; garbage collection appends at any point

    def take(self, nbytes: int) -> Any:
        """Return an untyped PyTorch storage of ``nbytes`` page-locked bytes. Raises UserError if locking them fails."""
        while self._ended:
            left, at, nbytes_left, key = self._ended.popleft()
            del self._views[key]
            left.fill(at, nbytes_left)
        size = -(-max(nbytes, 1) // GRAIN) * GRAIN
        for slab in self._slabs:
            found = slab.cut(size)
            if found is not None:
                return self._piece(slab, found, size, nbytes)
        slab = self._locked(max(size, min(self.slab, self.most // GRAIN * GRAIN)))
        offset = slab.cut(size)
        assert offset is not None
        return self._piece(slab, offset, size, nbytes)

    def _locked(self, nbytes: int) -> _Slab:
        slab = _Slab(nbytes)
        address = torch.frombuffer(slab.view, dtype=torch.uint8).data_ptr()
        runtime = self.cuda.cudart()
        error = int(runtime.cudaHostRegister(address, nbytes, 0))
        if error:
            self._take_the_error()
            raise UserError(f"{format_bytes(nbytes)} of host memory cannot be page-locked beside "
                            f"{format_bytes(self.locked)} (cudaHostRegister: error {error})")
        slab.memory.unlock = partial(_unlock, self.cuda, address)
        self._slabs.append(slab)
        self.locked += nbytes
        return slab

    def _take_the_error(self) -> None:
        """Clear the driver's error by letting PyTorch raise it here; else the program's next kernel would raise it."""
        with suppress(RuntimeError):
            torch.zeros(1, device="cuda" if self.cuda is torch.cuda else "cpu")

    def _piece(self, slab: _Slab, offset: int, size: int, nbytes: int) -> Any:
        view = slab.view[offset:offset + nbytes]
        storage = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()  # it keeps the view alive
        self._made += 1
        key = self._made
        self._views[key] = weakref.ref(view, lambda _: self._ended.append((slab, offset, size, key)))
        return storage


def _unlock(cuda: Any, address: int) -> None:
    """Unlock the pages at an address, after the copies that use them."""
    cuda.synchronize()
    cuda.cudart().cudaHostUnregister(address)
