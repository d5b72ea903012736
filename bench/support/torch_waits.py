"""For each of the seven waits of ``minidl.torch``'s copies a program that computes wrong bytes if the wait is missing.

A program runs on a ``Machine``: a GPU whose copies and kernels are slowed down where the program wants it, or the late
stand-in of ``torch_late``, where copies happen as late as the waits allow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bench.support.torch_late import LateCuda, bytes_of
from minidl.torch import cuda as cuda_module
from minidl.torch.backends import Copy
from minidl.torch.cuda import Cuda, Wait

NBYTES = 1 << 20
ROOMY = 1 << 30
CYCLES = 50_000_000  # some tens of milliseconds of a GPU


class Machine(Protocol):
    """The device of a program. late_out, late_in: True if copies of this direction are to be slow."""

    device: torch.device
    late_out: bool
    late_in: bool

    def backend(self, under_way: int) -> Cuda:
        """Return the backend whose waits are tried."""
        ...

    def computed(self, value: int, *, slowly: bool = False) -> Any:
        """Compute new bytes, all of this value; return their storage."""
        ...

    def read(self, storage: Any, *, slowly: bool = False) -> Callable[[], set[int]]:
        """Read a storage on the computing stream; return a function that returns the values of its bytes."""
        ...

    def other_stream(self) -> Any:
        """Return a context in which another stream computes."""
        ...


class Late:
    """A machine that is the stand-in of ``torch_late``. ``cuda.races``: the errors that PyTorch's sanitizer has found.
    """

    device = torch.device("cpu")
    late_out = late_in = True

    def __init__(self) -> None:
        self.cuda = LateCuda()

    @contextlib.contextmanager
    def memory(self) -> Any:
        """Return a context in which the backend takes the stand-in's memory."""
        module: Any = cuda_module
        usual, module.empty_storage = module.empty_storage, self.cuda.memory
        try:
            yield
        finally:
            module.empty_storage = usual

    def backend(self, under_way: int) -> Cuda:
        """Return a backend on the stand-in."""
        return Cuda(ROOMY, under_way=under_way, cuda=self.cuda, copy=self.cuda.copy)

    def computed(self, value: int, *, slowly: bool = False) -> Any:
        """Compute at once."""
        storage = self.cuda.memory(NBYTES)
        self.cuda.launched(set(), {storage.data_ptr()}, "computes")
        bytes_of(storage).fill_(value)
        return storage

    def read(self, storage: Any, *, slowly: bool = False) -> Callable[[], set[int]]:
        """Read at once."""
        self.cuda.launched({storage.data_ptr()}, set(), "reads")
        found = set(bytes_of(storage).unique().tolist())
        return lambda: found

    def other_stream(self) -> Any:
        """Another computing stream."""
        return self.cuda.stream(self.cuda.computing())


class Gpu:
    """A machine that is a GPU. Slow work waits for a kernel that only spins."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.late_out = self.late_in = False

    @contextlib.contextmanager
    def memory(self) -> Any:
        """Return a context that waits for the GPU at its beginning and end, and changes no memory."""
        torch.cuda.synchronize()
        yield
        torch.cuda.synchronize()

    def backend(self, under_way: int) -> Cuda:
        """Return a backend on the GPU."""
        return Cuda(ROOMY, under_way=under_way, copy=self._copy)

    def _copy(self, target: Any, source: Any) -> None:
        if self.late_out if target.device.type == "cpu" else self.late_in:
            torch.cuda._sleep(CYCLES)
        into, of = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (target, source))
        into.copy_(of, non_blocking=True)

    def computed(self, value: int, *, slowly: bool = False) -> Any:
        """Fill new memory."""
        tensor = torch.empty(NBYTES, dtype=torch.uint8, device=self.device)
        if slowly:  # a copy that does not wait must find other bytes, and the memory may have held these before
            tensor.fill_(value + 1)
            torch.cuda.synchronize()
            torch.cuda._sleep(CYCLES)
        return tensor.fill_(value).untyped_storage()

    def read(self, storage: Any, *, slowly: bool = False) -> Callable[[], set[int]]:
        """Copy it on the device."""
        if slowly:
            torch.cuda._sleep(CYCLES)
        found = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage).clone()
        return lambda: set(found.unique().tolist())

    def other_stream(self) -> Any:
        """Another computing stream."""
        return torch.cuda.stream(torch.cuda.Stream())


# Programs. Each returns True if all bytes are right -------------------------------------------------------------------
def copies_out_what_was_just_computed(on: Machine, backend: Cuda) -> bool:
    """The kernel that computes is slower than the copy would be without the wait."""
    backend.free(_out(backend, on.computed(1)))  # page-locks memory, which would take longer than the kernel
    backend.settle()
    copy = _out(backend, on.computed(7, slowly=True))
    backend.settle()
    return set(bytes_of(copy.buffer).unique().tolist()) == {7}


def uses_a_buffer_that_another_stream_has_left(on: Machine, backend: Cuda) -> bool:
    """The graph of a stream goes, with a copy in that it has not used, and another stream takes its buffer."""
    on.late_in = True
    copy = _out(backend, on.computed(7))
    kept = backend.into(copy, on.device)
    with on.other_stream():
        backend.free(copy)
    _out(backend, on.computed(8))
    backend.settle()
    return on.read(kept)() == {7}


def writes_where_a_copy_out_still_reads(on: Machine, backend: Cuda) -> bool:
    """Memory is given back while a slow copy out still reads it, and the next kernel writes there."""
    on.late_out = True
    copy = _out(backend, on.computed(7))
    on.computed(8)
    return _back(on, backend, copy) == {7}


def brings_back_what_is_still_on_its_way_out(on: Machine, backend: Cuda) -> bool:
    """The copy in is asked for while the copy out is slow."""
    on.late_out = True
    return _back(on, backend, _out(backend, on.computed(7))) == {7}


def brings_back_into_memory_that_a_kernel_still_reads(on: Machine, backend: Cuda) -> bool:
    """A copy in gets the memory that a slow kernel still reads."""
    copy = _out(backend, on.computed(7))
    backend.settle()
    there = on.computed(8)
    found = on.read(there, slowly=True)
    del there
    kept = backend.into(copy, on.device)
    backend.settle()
    del kept
    return found() == {8}


def uses_what_comes_back(on: Machine, backend: Cuda) -> bool:
    """A kernel reads what a slow copy brings."""
    on.late_in = True
    copy = _out(backend, on.computed(7))
    backend.settle()
    on.computed(8)  # the copy in gets memory with other bytes
    return _back(on, backend, copy) == {7}


def gives_up_what_comes_back_unused(on: Machine, backend: Cuda) -> bool:
    """A slow copy in is given up, and the next kernel writes into its memory."""
    on.late_in = True
    copy = _out(backend, on.computed(7))
    backend.settle()
    back = backend.into(copy, on.device)
    backend.free(copy)
    del back
    there = on.computed(8)
    backend.settle()
    return on.read(there)() == {8}


def _out(backend: Cuda, storage: Any) -> Copy:
    copy = backend.out(storage)
    assert copy is not None
    return copy


def _back(on: Machine, backend: Cuda, copy: Copy) -> set[int]:
    storage = backend.into(copy, on.device)
    backend.arrived(copy)
    return on.read(storage)()


PROGRAMS: dict[Wait, Callable[[Machine, Cuda], bool]] = {
    Wait.PRODUCED: copies_out_what_was_just_computed, Wait.BUFFER_READ: uses_a_buffer_that_another_stream_has_left,
    Wait.LEFT: writes_where_a_copy_out_still_reads, Wait.ON_THE_HOST: brings_back_what_is_still_on_its_way_out,
    Wait.MEMORY_FREE: brings_back_into_memory_that_a_kernel_still_reads, Wait.RETURNED: uses_what_comes_back,
    Wait.UNUSED: gives_up_what_comes_back_unused}


def right(on: Late | Gpu, wait: Wait, *, missing: bool = False) -> bool:
    """Run a wait's program; return True if its bytes are right. missing: without the wait."""
    with on.memory():
        backend = on.backend(0 if wait is Wait.LEFT else ROOMY)
        if missing:
            backend.waiting.discard(wait)
        return PROGRAMS[wait](on, backend)
