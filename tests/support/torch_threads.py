"""The backend for a CPU whose copies run beside the program, on two worker threads: one per direction.

A storage is kept alive until its copy to the host has ended. If pending copies exceed ``under_way`` bytes, ``out``
waits for the oldest, so that slow copies do not hold ever more memory. A buffer is reused after its last copy.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Any

import torch

from minidl.torch.backends import Copy, HostPool, Traffic, empty_storage, pageable

UNDER_WAY = 64 << 20  # most bytes of pending copies to the host


class Moved(Copy):
    """The ``Copy`` of a storage that worker threads transfer. under_way: how many of its transfers have not ended."""

    __slots__ = ("error", "freed", "under_way")

    def __init__(self, nbytes: int, buffer: Any) -> None:
        super().__init__(nbytes, buffer)
        self.written = Event()
        self.under_way, self.freed = 0, False
        self.error: BaseException | None = None


class Threads:
    """The ``Backend`` for a CPU whose transfers run on worker threads, beside the program's computation."""

    def __init__(self, host_bytes: int, *, under_way: int = UNDER_WAY, copy: Callable[[Any, Any], None] | None = None
                 ) -> None:
        """Start the threads. under_way: most bytes of pending copies out. copy: copies (target, source), for tests."""
        self.host = HostPool(host_bytes, pageable)
        self.traffic = Traffic()
        # A copy takes a processor from the kernels if they use all processors.
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.contention = 1.0 / (processors + 1) if torch.get_num_threads() >= processors else 0.0
        self._most = under_way
        self._copy = copy if copy is not None else _copied
        self._lock = Lock()
        self._leaving: deque[Moved] = deque()
        self._leaving_bytes = 0
        self._queues: tuple[SimpleQueue[Any], SimpleQueue[Any]] = (SimpleQueue(), SimpleQueue())
        for queue in self._queues:
            Thread(target=_work, args=(queue,), name="minidl copies", daemon=True).start()

    def out(self, storage: Any, again: Copy | None = None) -> Copy | None:
        """Queue a transfer to the host; arguments and result are those of ``Backend.out``."""
        nbytes = storage.nbytes()
        if again is None:
            with self._lock:
                buffer = self.host.take(nbytes)
            if buffer is None:
                return None
            copy = Moved(nbytes, buffer)
        else:
            assert isinstance(again, Moved)
            copy, copy.written = again, Event()
        while self._leaving and self._leaving_bytes + nbytes > self._most:
            self._wait(self._leaving.popleft())
        self._leaving.append(copy)
        self._leaving_bytes += nbytes
        with self._lock:
            copy.under_way += 1
        self._queues[0].put((self._write, copy, storage))
        return copy

    def _wait(self, copy: Moved) -> None:
        self._waited(copy.written)
        self._leaving_bytes -= copy.nbytes

    def into(self, copy: Copy, device: torch.device) -> Any:
        """Queue a transfer to the device; return the new storage, which is not filled yet."""
        assert isinstance(copy, Moved)
        storage = empty_storage(copy.nbytes, device)
        copy.read = Event()
        with self._lock:
            copy.under_way += 1
        self._queues[1].put((self._read, copy, storage))
        return storage

    def arrived(self, copy: Copy) -> None:
        """Wait until the transfer of ``into`` has ended, if one was queued. Raises the error of a failed transfer."""
        assert isinstance(copy, Moved)
        if copy.read is not None:  # None: ``into`` has not been called
            self._waited(copy.read)
        if copy.error is not None:
            raise copy.error

    def free(self, copy: Copy) -> None:
        """Give the copy's buffer back to the host pool when no transfer uses it any more."""
        assert isinstance(copy, Moved)
        with self._lock:
            copy.freed = True
            self._give_back(copy)

    def disown(self, copy: Copy) -> None:
        """Stop managing the copy's buffer, which belongs to the program from now on."""
        with self._lock:
            self.host.leave(copy.nbytes)

    def settle(self) -> None:
        """Wait until all transfers to the host have ended."""
        while self._leaving:
            self._wait(self._leaving.popleft())

    def _waited(self, event: Event) -> None:
        if not event.is_set():
            began = perf_counter()
            event.wait()
            self.traffic.stalled_seconds += perf_counter() - began

    # On the threads --------------------------------------------------------------------------------------------------
    def _write(self, copy: Moved, storage: Any) -> None:
        self._carry_out(copy, copy.buffer, storage)
        copy.written.set()

    def _read(self, copy: Moved, storage: Any) -> None:
        arrived = copy.read
        copy.written.wait()
        self._carry_out(copy, storage, copy.buffer)
        arrived.set()

    def _carry_out(self, copy: Moved, target: Any, source: Any) -> None:
        began = perf_counter()
        try:
            self._copy(target, source)
        except BaseException as error:
            copy.error = error
        seconds = perf_counter() - began
        with self._lock:
            if source is copy.buffer:
                self.traffic.in_seconds += seconds
                self.traffic.in_bytes += copy.nbytes
            else:
                self.traffic.out_seconds += seconds
                self.traffic.out_bytes += copy.nbytes
            self.traffic.copies += 1
            copy.under_way -= 1
            self._give_back(copy)

    def _give_back(self, copy: Moved) -> None:
        if copy.freed and not copy.under_way and copy.buffer is not None:
            self.host.give(copy.nbytes, copy.buffer)
            copy.buffer = None


def _copied(target: Any, source: Any) -> None:
    into, of = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (target, source))
    into.copy_(of)  # a tensor's copy_ lets other Python threads run meanwhile


def _work(queue: SimpleQueue[Any]) -> None:
    while True:
        job = queue.get()
        job[0](*job[1:])
        del job  # the job holds a storage
