"""Copies on two streams of a GPU beside the one that computes: one stream each way. The host waits for none of them.

PyTorch's allocator gives memory out again as soon as its last reference has gone, to whatever is launched next on the
stream that computes. So seven waits keep what is launched in order (``Wait``), and each is made in one place. A storage
is held until its copy out has ended, or until the computing stream has been told to wait for that: when the copies
under way have more than so many bytes. What comes back is allocated on the computing stream, as any tensor is. Nothing
is recorded with the allocator (``record_stream``): memory is then free when it says so, not at some later moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from minidl.torch.backends import Copy, Traffic, empty_storage
from minidl.torch.host import HostPool
from minidl.torch.page_locked import PageLocked

UNDER_WAY = 256 << 20  # bytes on their way out, at most


class Wait(Enum):
    """A stream waits for something on another one."""

    PRODUCED = "a copy out waits until what it copies has been computed"
    BUFFER_READ = "a copy out waits until no copy uses its host buffer any more"
    LEFT = "computation that may be given the memory waits until the copy out of it has ended"
    ON_THE_HOST = "a copy in waits until the bytes are on the host"
    MEMORY_FREE = "a copy in waits until computation that used its memory before has ended"
    RETURNED = "computation waits until what it uses is back"
    UNUSED = "computation that may be given the memory waits until a copy into it that nothing has used has ended"


class OnStreams(Copy):
    """A copy: ``written`` and ``read`` are events. waited: computation waits for the copy back already."""

    __slots__ = ("waited",)

    def __init__(self, nbytes: int, buffer: Any) -> None:
        super().__init__(nbytes, buffer)
        self.waited = True


class Cuda:
    """The backend of that kind.

    waiting  the waits that are made: all, but for tests which show that each is needed.
    """

    contention = 0.0

    def __init__(self, host_bytes: int, *, under_way: int = UNDER_WAY, cuda: Any = torch.cuda,
                 copy: Callable[[Any, Any], None] | None = None) -> None:
        """under_way: bytes on their way out at most. cuda: streams and events. copy: how the current stream is asked to
        carry bytes from one storage into another."""
        self.cuda = cuda
        self.host = HostPool(host_bytes, PageLocked(cuda, host_bytes).take)
        self.traffic = Traffic()
        self.waiting = set(Wait)
        self._most = under_way
        self._copy = copy if copy is not None else _copied
        self._out, self._in = cuda.Stream(), cuda.Stream()
        self._leaving: deque[tuple[Any, Any, Any]] = deque()  # storage, event, the stream that had computed it
        self._leaving_bytes = 0
        self._used: dict[int, Any] = {}  # by the address of a host buffer: the event after its last use
        self._timed: deque[tuple[Any, Any, int, str]] = deque()

    # The protocol ----------------------------------------------------------------------------------------------------
    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """As the protocol says."""
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
        """As the protocol says."""
        assert isinstance(copy, OnStreams)
        storage = empty_storage(copy.nbytes, device)
        self._wait(Wait.ON_THE_HOST, self._in, copy.written)
        self._wait(Wait.MEMORY_FREE, self._in, self._event(self.cuda.current_stream()))
        copy.read, copy.waited = self._carry(self._in, storage, copy.buffer, "in"), False
        self._used[copy.buffer.data_ptr()] = copy.read
        return storage

    def arrived(self, copy: Copy) -> None:
        """As the protocol says."""
        assert isinstance(copy, OnStreams)
        if copy.waited:
            return  # nothing was brought back: the storage had not gone
        compute, late = self.cuda.current_stream(), not copy.read.query()
        began = self._event(compute) if late else None
        self._wait(Wait.RETURNED, compute, copy.read)
        copy.waited = True
        if late:
            self._timed.append((began, self._event(compute), 0, "stalled"))

    def free(self, copy: Copy) -> None:
        """As the protocol says."""
        self._leave_unused(copy)
        self.host.give(copy.nbytes, copy.buffer)  # whose next use waits for this one

    def disown(self, copy: Copy) -> None:
        """As the protocol says."""
        self._leave_unused(copy)
        self._used.pop(copy.buffer.data_ptr(), None)
        self.host.leave(copy.nbytes)

    def settle(self) -> None:
        """As the protocol says."""
        self._out.synchronize()
        self._in.synchronize()
        self._leaving.clear()
        self._leaving_bytes = 0
        self._look()

    # Order -----------------------------------------------------------------------------------------------------------
    def _wait(self, why: Wait, stream: Any, event: Any) -> None:
        if event is not None and why in self.waiting:
            stream.wait_event(event)

    def _event(self, stream: Any) -> Any:
        event = self.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _carry(self, stream: Any, target: Any, source: Any, way: str) -> Any:
        """Ask a stream for a copy; returns the event after it."""
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
        """Let go of storages whose copies have ended, and of the earliest others until these have at most so many
        bytes."""
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
        """How long copies and waits took that have ended."""
        while self._timed and self._timed[0][1].query():
            began, ended, _, way = self._timed.popleft()
            name = f"{way}_seconds"
            setattr(self.traffic, name, getattr(self.traffic, name) + began.elapsed_time(ended) / 1e3)


def _copied(target: Any, source: Any) -> None:
    into, of = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (target, source))
    into.copy_(of, non_blocking=True)
