"""The backend for a GPU: copies run on two streams beside the computing one, one per direction.

PyTorch's allocator reuses memory as soon as its last reference is gone, for the next kernel of the computing stream. So
seven waits keep the order (``Wait``), and each is made in one place. A storage is kept alive until its copy to the host
has ended. If pending copies exceed ``under_way`` bytes, the computing stream waits for the oldest ones, and their
storages are released at once. A copy in goes to memory that is allocated on the computing stream, as any tensor is.
``record_stream`` is not used, since it would free memory at an unknown later time. Only ``settle`` blocks the host.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from minidl.torch.backends import Copy, HostPool, Traffic, empty_storage
from minidl.torch.page_locked import PageLocked

UNDER_WAY = 256 << 20  # most bytes of pending copies to the host


class Wait(Enum):
    """One of the seven cases in which a stream waits for work on another stream."""

    PRODUCED = "a copy out waits until its source has been computed"
    BUFFER_READ = "a copy out waits until no copy uses its host buffer any more"
    LEFT = "computation that may reuse a storage's memory waits until the copy out of it has ended"
    ON_THE_HOST = "a copy in waits until the bytes are on the host"
    MEMORY_FREE = "a copy in waits until computation that used its memory before has ended"
    RETURNED = "computation waits until the tensor that it uses has been copied in"
    UNUSED = "computation that may reuse a storage's memory waits until an unused copy into it has ended"


class OnStreams(Copy):
    """A ``Copy`` with CUDA events. waited: True if no transfer back to the device is left to wait for."""

    __slots__ = ("waited",)

    def __init__(self, nbytes: int, buffer: Any) -> None:
        super().__init__(nbytes, buffer)
        self.waited = True


class Cuda:
    """The ``Backend`` for CUDA, whose transfers run on two streams of their own.

    waiting  the cases of ``Wait`` in which a stream does wait: all, but tests leave one out to show that it is needed.
    """

    contention = 0.0

    def __init__(self, host_bytes: int, *, under_way: int = UNDER_WAY, cuda: Any = torch.cuda,
                 copy: Callable[[Any, Any], None] | None = None) -> None:
        """Make two streams and an empty host pool of ``host_bytes`` bytes. under_way: most bytes of pending copies out.
        cuda: the module with streams and events. copy: called with (target, source) to copy on the current stream."""
        self.cuda = cuda
        self._pages = PageLocked(cuda, host_bytes)
        self.host = HostPool(host_bytes, self._cut)
        self.traffic = Traffic()
        self.waiting = set(Wait)
        self._most = under_way
        self._copy = copy if copy is not None else _copied
        self._out, self._in = cuda.Stream(), cuda.Stream()
        self._leaving: deque[tuple[Any, Any, Any]] = deque()  # storage, event after the copy, computing stream
        self._leaving_bytes = 0
        self._used: dict[int, Any] = {}  # by the address of a host buffer: the event after its last use
        self._timed: deque[tuple[Any, Any, int, str]] = deque()

    # The protocol ----------------------------------------------------------------------------------------------------
    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """Queue a transfer to the host on the stream for it; arguments and result are those of ``Backend.out``."""
        nbytes = storage.nbytes()
        buffer = self.host.take(nbytes) if again is None else again.buffer
        if buffer is None:
            return None
        copy = again if isinstance(again, OnStreams) else OnStreams(nbytes, buffer)
        compute = self.cuda.current_stream()
        self._wait(Wait.PRODUCED, self._out, self._event(compute))
        self._wait(Wait.BUFFER_READ, self._out, self._used.pop(buffer.data_ptr(), None))
        copy.written = self._carry(self._out, buffer, storage, "out")
        self._used[buffer.data_ptr()] = copy.written
        self._leaving.append((storage, copy.written, compute))
        self._leaving_bytes += nbytes
        self._reclaim(self._most)
        return copy

    def into(self, copy: Copy, device: torch.device) -> Any:
        """Queue a transfer to the device on the stream for it; return the new storage, which is not filled yet."""
        assert isinstance(copy, OnStreams)
        storage = empty_storage(copy.nbytes, device)
        self._wait(Wait.ON_THE_HOST, self._in, copy.written)
        self._wait(Wait.MEMORY_FREE, self._in, self._event(self.cuda.current_stream()))
        copy.read, copy.waited = self._carry(self._in, storage, copy.buffer, "in"), False
        self._used[copy.buffer.data_ptr()] = copy.read
        return storage

    def arrived(self, copy: Copy) -> None:
        """Make the computing stream wait until the transfer of ``into`` has ended, if one was queued."""
        assert isinstance(copy, OnStreams)
        if copy.waited:
            return  # no copy in is pending
        compute, late = self.cuda.current_stream(), not copy.read.query()
        began = self._event(compute) if late else None
        self._wait(Wait.RETURNED, compute, copy.read)
        copy.waited = True
        if late:
            self._timed.append((began, self._event(compute), 0, "stalled"))

    def free(self, copy: Copy) -> None:
        """Give the copy's buffer back to the host pool."""
        self._leave_unused(copy)
        self.host.give(copy.nbytes, copy.buffer)  # the buffer's next copy waits for this one: BUFFER_READ

    def disown(self, copy: Copy) -> None:
        """Stop managing the copy's buffer, which belongs to the program from now on."""
        self._leave_unused(copy)
        self._used.pop(copy.buffer.data_ptr(), None)
        self.host.leave(copy.nbytes)

    def settle(self) -> None:
        """Block the host until all copies in both directions have ended."""
        self._out.synchronize()
        self._in.synchronize()
        self._leaving.clear()
        self._leaving_bytes = 0
        self._look()

    def _cut(self, nbytes: int) -> Any:
        """Return a new host buffer. Copies in may still read the buffers from which its bytes are cut."""
        buffer = self._pages.take(nbytes)
        self._used[buffer.data_ptr()] = self._event(self._in)
        return buffer

    # Order -----------------------------------------------------------------------------------------------------------
    def _wait(self, why: Wait, stream: Any, event: Any) -> None:
        if event is not None and why in self.waiting:
            stream.wait_event(event)

    def _event(self, stream: Any) -> Any:
        event = self.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _carry(self, stream: Any, target: Any, source: Any, way: str) -> Any:
        """Queue a copy of ``source`` into ``target`` on a stream; return the event after it. way: "out" or "in"."""
        began = self._event(stream)
        with self.cuda.stream(stream):
            self._copy(target, source)
        ended = self._event(stream)
        self._timed.append((began, ended, target.nbytes(), way))
        self.traffic.copies += 1
        if way == "out":
            self.traffic.out_bytes += target.nbytes()
        else:
            self.traffic.in_bytes += target.nbytes()
        return ended

    def _reclaim(self, most: int) -> None:
        """Release storages whose copies have ended, and the oldest others if pending copies exceed ``most`` bytes."""
        while self._leaving:
            storage, event, compute = self._leaving[0]
            if not event.query():
                if self._leaving_bytes <= most:
                    break
                for stream in dict.fromkeys((compute, self.cuda.current_stream())):
                    self._wait(Wait.LEFT, stream, event)
            self._leaving.popleft()
            self._leaving_bytes -= storage.nbytes()
            del storage
        self._look()

    def _leave_unused(self, copy: Copy) -> None:
        assert isinstance(copy, OnStreams)
        if not copy.waited:
            self._wait(Wait.UNUSED, self.cuda.current_stream(), copy.read)
            copy.waited = True

    def _look(self) -> None:
        """Add the seconds of the transfers and waits that have ended to ``traffic``."""
        while self._timed and self._timed[0][1].query():
            began, ended, _, way = self._timed.popleft()
            name = f"{way}_seconds"
            setattr(self.traffic, name, getattr(self.traffic, name) + began.elapsed_time(ended) / 1e3)


def _copied(target: Any, source: Any) -> None:
    into, of = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (target, source))
    into.copy_(of, non_blocking=True)
