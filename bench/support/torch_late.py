"""A GPU's streams without a GPU: copies happen as late as the waits allow, over poison, and PyTorch's own sanitizer of
CUDA streams is told of every launch, copy, event and wait.

What computes does so at once: the computing streams are the processor itself. A copy is carried out when something
waits for it. Until then what it is to fill is poison; if what it reads has been given away meanwhile, poison is what it
copies.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch
from torch.cuda._sanitizer import EventHandler
from torch.utils._python_dispatch import TorchDispatchMode

from minidl.torch.backends import quiet
from minidl.torch.schemas import schema_of, tensors_in, written_by

POISON = 0xAB


def bytes_of(storage: Any) -> torch.Tensor:
    """A storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class LateStream:
    """A stream. late: what it is asked for waits in ``todo``; else it has been done when it is asked."""

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
        """Do what comes before a position."""
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
        """It is reached when the stream has done all so far."""
        self.cuda.sanitizer._handle_event_record(self.number, stream.number)
        self.stream, self.position = stream, len(stream.todo)

    def reach(self) -> None:
        """Do what comes before it."""
        assert self.stream is not None
        self.stream.until(self.position)

    def query(self) -> bool:
        """Return True if the stream has reached the event: as late as the waits allow."""
        return self.stream is None or self.stream.done >= self.position

    def elapsed_time(self, other: LateEvent) -> float:
        """Return 1: the milliseconds from this event to another."""
        return 1.0


class LateCuda:
    """Stands in for ``torch.cuda``. races: what the sanitizer has found. locked_bytes: of page-locked host memory."""

    def __init__(self) -> None:
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
        """A stream for copies."""
        return LateStream(self, late=True)

    def Event(self, enable_timing: bool = False) -> LateEvent:  # noqa: N802
        """An event."""
        return LateEvent(self)

    def current_stream(self) -> LateStream:
        """The one that computes, or that ``stream`` has chosen."""
        return self._current[-1]

    @contextlib.contextmanager
    def stream(self, stream: LateStream) -> Any:
        """On another stream."""
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def cudart(self) -> LateCuda:
        """The runtime."""
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        """Lock pages, of which none may be locked already."""
        if any(address < at + size and at < address + nbytes for at, size in self.locked.items()):
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.locked[address] = nbytes
        self.locked_bytes += nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        """Unlock pages."""
        self.locked_bytes -= self.locked.pop(address)
        return 0

    def synchronize(self) -> None:
        """Do all that was queued."""
        for stream in list(self.streams):
            stream.synchronize()

    # Its work --------------------------------------------------------------------------------------------------------
    def computing(self) -> LateStream:
        """Another stream that computes."""
        return LateStream(self, late=False)

    def launched(self, reads: set[int], writes: set[int], name: str) -> None:
        """A kernel on the current stream has these addresses."""
        found = self.sanitizer._handle_kernel_launch(self.current_stream().number, reads - writes, writes, writes, name,
                                                     {address: [] for address in reads | writes})
        if len(self.races) < 50:
            self.races += found

    def copy(self, target: Any, source: Any) -> None:
        """Carry bytes over, later."""
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
        """Device memory, full of poison: what was given back last, if it has as many bytes."""
        free = self._free.setdefault(nbytes, [])
        block = free.pop() if free else bytearray(nbytes)
        view = memoryview(block)
        storage = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
        weakref.finalize(view, free.append, block)
        bytes_of(storage).fill_(POISON)
        return storage


class Kernels(TorchDispatchMode):
    """Tells of each call of a program on the computing stream."""

    def __init__(self, late_cuda: LateCuda, least: int = 4096) -> None:
        super().__init__()
        self.cuda, self.least = late_cuda, least

    def _addresses(self, tensors: list[torch.Tensor]) -> set[int]:
        return {t.untyped_storage().data_ptr() for t in tensors
                if t.layout is torch.strided and t.untyped_storage().nbytes() >= self.least}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = schema_of(func)
        if not schema.view:
            made = tensors_in(result if isinstance(result, (tuple, list)) else (result,))
            writes = self._addresses([*made, *written_by(schema, args, kwargs)])
            self.cuda.launched(self._addresses(tensors_in(args, kwargs)), writes, schema.name)
        return result
