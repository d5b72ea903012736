"""How bytes go to the host and come back: one small protocol, and the backend whose copies are over when they return.

A backend knows storages and host buffers. It decides nothing, and knows no autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import torch

from minidl.plan.costs import Costs
from minidl.torch.host import HostPool

LEAST_SECONDS = 1e-12  # a byte, where nothing has been copied yet


class Copy:
    """Bytes of one storage on the host.

    nbytes   of the storage; buffer: where they lie on the host.
    written  set when the bytes have arrived there, by backends whose copies go on by themselves.
    read     the same of the copy back.
    """

    __slots__ = ("buffer", "nbytes", "read", "written")

    def __init__(self, nbytes: int, buffer: Any) -> None:
        self.nbytes, self.buffer = nbytes, buffer
        self.written: Any = None
        self.read: Any = None


class Traffic:
    """What copies have come to: bytes and seconds each way, how many, and seconds that computation has waited."""

    def __init__(self) -> None:
        self.out_bytes = self.in_bytes = self.copies = 0
        self.out_seconds = self.in_seconds = self.stalled_seconds = 0.0

    def costs(self, contention: float) -> Costs:
        """The link as it was seen so far."""
        out = self.out_seconds / self.out_bytes if self.out_bytes else LEAST_SECONDS
        back = self.in_seconds / self.in_bytes if self.in_bytes else out
        return Costs(out, back, 0.0, contention)


class Backend(Protocol):
    """Copies of whole storages.

    host     the pool of host buffers.
    traffic  what the copies have come to.
    contention  seconds that computation loses for each second that a copy goes on.
    """

    host: HostPool
    traffic: Traffic
    contention: float

    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """Begin to copy a storage to the host; None if there is no room. The backend holds it as long as it must.
        again: a copy of as many bytes, into whose buffer it goes."""
        ...

    def into(self, copy: Copy, device: torch.device) -> Any:
        """A new storage on the device, and the beginning of the copy into it."""
        ...

    def arrived(self, copy: Copy) -> None:
        """Return when what ``into`` brings back, if it was asked to, may be used by what is computed next."""
        ...

    def free(self, copy: Copy) -> None:
        """The copy is not wanted any more."""
        ...

    def disown(self, copy: Copy) -> None:
        """The same, but others hold its buffer: that is not used again."""
        ...

    def settle(self) -> None:
        """Return when all copies so far have ended."""
        ...


on_host: set[int] = set()  # addresses of storages that hold a copy where a program sees it


@contextmanager
def quiet() -> Iterator[None]:
    """Calls that no dispatch mode and no autograd sees."""
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        yield


unseen: list[Callable[[Any], None]] = []  # are told of each storage on the device that no dispatch mode sees


def announce(storage: Any) -> None:
    """A storage was made on the device under ``quiet``."""
    for told in unseen:
        told(storage)


def empty_storage(nbytes: int, device: torch.device) -> Any:
    """A storage of so many bytes on the device, with anything in them."""
    storage = torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()
    announce(storage)
    return storage


def allocated(nbytes: int, device_type: str) -> int:
    """Bytes that PyTorch's allocator takes for so many: on a GPU multiples of 512, from 10 MiB on of 2 MiB."""
    grain = 1 if device_type != "cuda" else 512 if nbytes < 10 << 20 else 2 << 20
    return -(-nbytes // grain) * grain


def pageable(nbytes: int) -> Any:
    """A buffer of so many bytes on the host."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()


class Immediate:
    """Copies that are over when they return: computation stands still meanwhile."""

    contention = 1.0

    def __init__(self, host_bytes: int) -> None:
        self.host = HostPool(host_bytes, pageable)
        self.traffic = Traffic()

    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """As the protocol says."""
        nbytes = storage.nbytes()
        buffer = self.host.take(nbytes) if again is None else again.buffer
        if buffer is None:
            return None
        began = perf_counter()
        buffer.copy_(storage)
        self.traffic.out_seconds += perf_counter() - began
        self.traffic.out_bytes += nbytes
        self.traffic.copies += 1
        return Copy(nbytes, buffer) if again is None else again

    def into(self, copy: Copy, device: torch.device) -> Any:
        """As the protocol says."""
        began = perf_counter()
        storage = empty_storage(copy.nbytes, device)
        storage.copy_(copy.buffer)
        self.traffic.in_seconds += perf_counter() - began
        self.traffic.in_bytes += copy.nbytes
        self.traffic.copies += 1
        return storage

    def arrived(self, copy: Copy) -> None:
        """It has."""

    def free(self, copy: Copy) -> None:
        """As the protocol says."""
        self.host.give(copy.nbytes, copy.buffer)

    def disown(self, copy: Copy) -> None:
        """As the protocol says."""
        self.host.leave(copy.nbytes)

    def settle(self) -> None:
        """They have."""
