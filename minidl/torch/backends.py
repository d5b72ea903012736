"""Copies between device and host: the ``Backend`` protocol, and ``Immediate``, the backend whose copies block.

A backend copies storages to host buffers and back. It decides nothing and knows nothing about autograd.
Host buffers come from a pool, by size, up to a number of bytes; the pool knows no tensors and no plan.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, Protocol

import torch

from minidl.plan.costs import Costs

LEAST_SECONDS = 1e-12  # per byte, before the first copy
CPU = torch.device("cpu")
MOST_AT_ONCE = 32 << 10  # bytes that one thread copies: PyTorch divides larger copies among its threads


class Copy:
    """The duplicate of one device storage's bytes in host memory, from which the storage can be restored.

    nbytes   size of the storage; buffer: the host storage that contains the duplicate.
    written  event that is set when the transfer to the host has ended; None in backends whose transfers block.
    read     event that is set when the transfer back to the device has ended; None before one has started.
    """

    __slots__ = ("buffer", "nbytes", "read", "written")

    def __init__(self, nbytes: int, buffer: Any) -> None:
        self.nbytes, self.buffer = nbytes, buffer
        self.written: Any = None
        self.read: Any = None


class Traffic:
    """Totals over all transfers between device and host: bytes and seconds each way, and their number.
    ``stalled_seconds``: computation has waited so long for tensors on their way back to the device."""

    def __init__(self) -> None:
        self.out_bytes = self.in_bytes = self.copies = 0
        self.out_seconds = self.in_seconds = self.stalled_seconds = 0.0

    def costs(self, contention: float) -> Costs:
        """Return the measured seconds per byte of transfers out and in, with ``contention`` as ``Backend`` has it.
        Before the first transfer it is 1e-12; a way back without a transfer costs as much as the way out."""
        out = self.out_seconds / self.out_bytes if self.out_bytes else LEAST_SECONDS
        back = self.in_seconds / self.in_bytes if self.in_bytes else out
        return Costs(out, back, 0.0, contention)


class Backend(Protocol):
    """The interface of objects that transfer whole storages of PyTorch between the device and the host.

    host     the pool of host buffers.
    traffic  totals over the transfers so far.
    contention  seconds that computation loses for each second in which a transfer runs.
    """

    host: HostPool
    traffic: Traffic
    contention: float

    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """Start the transfer of a storage to the host; return its ``Copy``, or None if the host pool is full.
        The backend keeps the storage alive until the transfer has ended. again: an earlier ``Copy`` of equal size,
        whose buffer is overwritten."""

    def into(self, copy: Copy, device: torch.device) -> Any:
        """Return a new storage on the device, and start the transfer of the copy's bytes to it. Call ``arrived``."""

    def arrived(self, copy: Copy) -> None:
        """Make later computation wait until the transfer that ``into`` started has ended, if it has started one."""

    def free(self, copy: Copy) -> None:
        """Give the copy's buffer back to the host pool."""

    def disown(self, copy: Copy) -> None:
        """Leave the copy's buffer to the program: the host pool neither counts nor reuses it from now on."""

    def settle(self) -> None:
        """Wait until all transfers to the host that have started have ended."""


# By address, the host storages that the program sees in place of optimizer state.
on_host: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


_VISIBLE: AbstractContextManager[None] = nullcontext()


def quiet() -> AbstractContextManager[None]:
    """Return a context that hides the calls inside it from dispatch modes. None of the calls may need a gradient."""
    # Hundreds of saved tensors a step pass here, and PyTorch's guard alone takes microseconds.
    return torch._C._DisableTorchDispatch() if torch._C._len_torch_dispatch_stack() else _VISIBLE


unseen: list[Callable[[Any], None]] = []  # called with each device storage that no mode sees


def announce(storage: Any) -> None:
    """Call each function in ``unseen``, such as a memory meter's, with a storage that dispatch modes have not seen."""
    for told in unseen:
        told(storage)


def empty_storage(nbytes: int, device: torch.device) -> Any:
    """Return an uninitialized storage of ``nbytes`` bytes on the device."""
    storage = torch.UntypedStorage(nbytes) if device == CPU else torch.UntypedStorage(nbytes, device=device)
    if unseen:
        announce(storage)
    return storage


def copy_bytes(target: Any, source: Any) -> None:
    """Copy the bytes of ``source`` into ``target``, a storage of equal size; return when the bytes are there."""
    nbytes = source.nbytes()
    if nbytes <= MOST_AT_ONCE and source.device == target.device == CPU:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes)  # ``copy_`` takes five times as long
    else:
        target.copy_(source)


def allocated(nbytes: int, device_type: str) -> int:
    """Return the bytes that PyTorch allocates for ``nbytes``: on a GPU a multiple of 512, from 10 MiB on of 2 MiB."""
    grain = 1 if device_type != "cuda" else 512 if nbytes < 10 << 20 else 2 << 20
    return -(-nbytes // grain) * grain


def pageable(nbytes: int) -> Any:
    """Return a storage of ``nbytes`` bytes in ordinary (pageable) host memory."""
    return torch.UntypedStorage(nbytes, device="cpu")


class Immediate:
    """The ``Backend`` whose ``out`` and ``into`` return when the bytes have arrived; computation waits meanwhile."""

    contention = 1.0

    def __init__(self, host_bytes: int) -> None:
        self.host = HostPool(host_bytes, pageable)
        self.traffic = Traffic()

    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """Copy a storage to the host and wait; arguments and result are those of ``Backend.out``."""
        nbytes = storage.nbytes()
        buffer = self.host.take(nbytes) if again is None else again.buffer
        if buffer is None:
            return None
        began = perf_counter()
        copy_bytes(buffer, storage)
        self.traffic.out_seconds += perf_counter() - began
        self.traffic.out_bytes += nbytes
        self.traffic.copies += 1
        return Copy(nbytes, buffer) if again is None else again

    def into(self, copy: Copy, device: torch.device) -> Any:
        """Return a new storage on the device that contains the copy's bytes already."""
        began = perf_counter()
        storage = empty_storage(copy.nbytes, device)
        copy_bytes(storage, copy.buffer)
        self.traffic.in_seconds += perf_counter() - began
        self.traffic.in_bytes += copy.nbytes
        self.traffic.copies += 1
        return storage

    def arrived(self, copy: Copy) -> None:
        """Do nothing, since ``into`` has waited for its transfer."""

    def free(self, copy: Copy) -> None:
        """Give the copy's buffer back to the host pool."""
        self.host.give(copy.nbytes, copy.buffer)

    def disown(self, copy: Copy) -> None:
        """Leave the copy's buffer to the program: the host pool neither counts nor reuses it from now on."""
        self.host.leave(copy.nbytes)

    def settle(self) -> None:
        """Do nothing, since ``out`` has waited for each transfer."""


class HostPool:
    """Buffers of host memory, which are kept for reuse when they are given back.

    Buffers in use and kept ones together take at most what was in use at once, ``most``: a program whose lengths change
    from step to step needs other sizes all the time.

    capacity  the largest number of bytes that buffers in use may have together.
    used      bytes of the buffers in use; most: the peak of ``used`` so far.
    refused   how many buffers the capacity has not allowed so far.
    """

    def __init__(self, capacity: int, allocate: Callable[[int], Any]) -> None:
        """Make an empty pool. allocate: called with a number of bytes, returns a new buffer of that size."""
        self.capacity = capacity
        self.used = self.most = self.refused = 0
        self._allocate = allocate
        self._free: dict[int, list[Any]] = {}  # by size; no list is empty
        self._kept = 0  # bytes of the free buffers

    def take(self, nbytes: int) -> Any | None:
        """Return a buffer of exactly ``nbytes`` bytes; None if the capacity does not allow it."""
        used = self.used + nbytes
        if used > self.capacity:
            self.refused += 1
            return None
        most = max(self.most, used)
        if nbytes in self._free:
            buffer = self._pop(nbytes)
        else:
            while self._free and used + self._kept > most:
                self._pop(next(iter(self._free)))  # of the size that has been kept longest
            buffer = self._allocate(nbytes)
        self.used, self.most = used, most
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

    def _pop(self, nbytes: int) -> Any:
        free = self._free[nbytes]
        if len(free) == 1:
            del self._free[nbytes]
        self._kept -= nbytes
        return free.pop()
