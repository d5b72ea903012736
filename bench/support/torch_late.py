"""A stand-in for a GPU's streams: copies happen as late as the waits allow, into and from memory full of poison.

PyTorch's own sanitizer of CUDA streams is told of every launch, copy, event and wait.

Kernels are computed at once, since the computing streams are the processor itself. A copy is carried out only when
something waits for it. Until then its target holds poison; and if the memory that it reads has been given away
meanwhile, it copies poison.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minidl.torch.backends import quiet
from minidl.torch.schemas import schema_of, tensors_in, written_by

POISON = 0xAB


def bytes_of(storage: Any) -> torch.Tensor:
    """Return a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class LateStream:
    """A stream. late: its work is kept in ``todo`` until something waits for it; else work is done at once."""

    def __init__(self, late_cuda: LateCuda, late: bool) -> None:
        self.cuda, self.late = late_cuda, late
        self.number = len(late_cuda.streams)
        late_cuda.streams.append(self)
        late_cuda.sanitizer._handle_stream_creation(self.number)
        self.todo: list[Any] = []
        self.done = 0

    def wait_event(self, event: LateEvent) -> None:
        """Let all later work of this stream start after an event."""
        self.cuda.sanitizer._handle_event_wait(event.number, self.number)
        if self.late:
            self.todo.append(event.reach)
        else:
            event.reach()

    def synchronize(self) -> None:
        """Run the stream up to this event."""
        self.cuda.sanitizer._handle_stream_synchronization(self.number)
        self.until(len(self.todo))

    def until(self, position: int) -> None:
        """Do all work of the stream before a position."""
        while self.done < position:
            self.done += 1
            self.todo[self.done - 1]()


class LateEvent:
    """A position in a stream."""

    def __init__(self, late_cuda: LateCuda) -> None:
        self.cuda = late_cuda
        self.number = late_cuda.events = late_cuda.events + 1
        late_cuda.sanitizer._handle_event_creation(self.number)
        self.stream: LateStream | None = None
        self.position = 0

    def record(self, stream: LateStream) -> None:
        """Set the event to the present end of a stream's work."""
        self.cuda.sanitizer._handle_event_record(self.number, stream.number)
        self.stream, self.position = stream, len(stream.todo)

    def reach(self) -> None:
        """Do all work of the stream that comes before the event."""
        assert self.stream is not None
        self.stream.until(self.position)

    def query(self) -> bool:
        """Return True if the stream has done all work before the event."""
        return self.stream is None or self.stream.done >= self.position

    def elapsed_time(self, other: LateEvent) -> float:
        """Return 1, for any two events: milliseconds."""
        return 1.0


class LateCuda:
    """A stand-in for ``torch.cuda``. races: the errors that the sanitizer found; locked_bytes: of page-locked memory.
    """

    def __init__(self) -> None:
        from torch.cuda._sanitizer import EventHandler  # its import makes PyTorch tell Python of every call to a GPU

        self.sanitizer = EventHandler()
        self.streams: list[LateStream] = []
        self.events = 0
        self.races: list[Any] = []
        self.locked: dict[int, int] = {}  # bytes by address
        self.locked_bytes = 0
        self._current = [LateStream(self, late=False)]
        self._free: dict[int, list[Any]] = {}

    # As torch.cuda has it --------------------------------------------------------------------------------------------
    def Stream(self) -> LateStream:  # noqa: N802
        """Make a stream for copies."""
        return LateStream(self, late=True)

    def Event(self, enable_timing: bool = False) -> LateEvent:  # noqa: N802
        """Make an event."""
        return LateEvent(self)

    def current_stream(self) -> LateStream:
        """Return the computing stream, or the one chosen by ``stream``."""
        return self._current[-1]

    @contextlib.contextmanager
    def stream(self, stream: LateStream) -> Any:
        """Return a context in which this stream is the current one."""
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def cudart(self) -> LateCuda:
        """Return this object, which also stands in for the CUDA runtime library."""
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        """Mark pages of host memory as locked; return 0, or CUDA's error 712 if one of them is locked already."""
        if any(address < at + size and at < address + nbytes for at, size in self.locked.items()):
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.locked[address] = nbytes
        self.locked_bytes += nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        """Mark pages of host memory as no longer locked."""
        self.locked_bytes -= self.locked.pop(address)
        return 0

    def synchronize(self) -> None:
        """Do all work of all streams."""
        for stream in list(self.streams):
            stream.synchronize()

    # Its work --------------------------------------------------------------------------------------------------------
    def computing(self) -> LateStream:
        """Make another computing stream."""
        return LateStream(self, late=False)

    def launched(self, reads: set[int], writes: set[int], name: str) -> None:
        """Tell the sanitizer of a kernel on the current stream that reads and writes these addresses."""
        found = self.sanitizer._handle_kernel_launch(self.current_stream().number, reads - writes, writes, writes, name,
                                                     {address: [] for address in reads | writes})
        if len(self.races) < 50:
            self.races += found

    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy of bytes on the current stream."""
        self.launched({source.data_ptr()}, {target.data_ptr()}, "copy")
        stream = self.current_stream()
        assert stream.late
        into, of = weakref.ref(target), weakref.ref(source)

        def carry_out() -> None:
            there, here = into(), of()
            if there is None:
                return
            with quiet():
                if here is None:
                    bytes_of(there).fill_(POISON)
                else:
                    bytes_of(there).copy_(bytes_of(here))

        stream.todo.append(carry_out)

    def memory(self, nbytes: int, device: Any = None) -> Any:
        """Allocate device memory full of poison: the memory freed last, if it has as many bytes."""
        free = self._free.setdefault(nbytes, [])
        block = free.pop() if free else bytearray(nbytes)
        view = memoryview(block)
        storage = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
        weakref.finalize(view, free.append, block)
        bytes_of(storage).fill_(POISON)
        return storage


class Kernels(TorchDispatchMode):
    """Tells the sanitizer of each operation that a program calls on the computing stream."""

    def __init__(self, late_cuda: LateCuda, least: int = 4096) -> None:
        super().__init__()
        self.cuda, self.least = late_cuda, least

    def _addresses(self, tensors: list[torch.Tensor]) -> set[int]:
        return {t.untyped_storage().data_ptr() for t in tensors
                if t.layout is torch.strided and t.untyped_storage().nbytes() >= self.least}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one operation, and tell the sanitizer of it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = schema_of(func)
        if not schema.view:
            made = tensors_in(result if isinstance(result, (tuple, list)) else (result,))
            writes = self._addresses([*made, *written_by(schema, args, kwargs)])
            self.cuda.launched(self._addresses(tensors_in(args, kwargs)), writes, schema.name)
        return result
