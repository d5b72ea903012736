"""A clock on real time: each of the three streams is a worker thread.

A stream is an in-order queue and one worker that empties it. Positions are events, as on the virtual clock: a worker
publishes a position when it has finished that piece of work. A worker that waits for a position sleeps until it is
published. A wait is itself an entry in the waiting stream's queue, so the host continues. Work only ever waits for work
that was issued before it, so some worker can always continue.

  host      issue, wait ---> queue ---> worker: effect, then publish(position) ---> waiting threads wake up

The first error of a worker stops all three. The host's next ``issue``, ``synchronize`` or ``end_iteration`` raises it,
with its own traceback, and so does each later one. An effect is any function without arguments: clocks know no kernels,
bytes or tensors.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import NoReturn

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, STREAM_NAMES, Effect, Marks, Timed
from minidl.errors import UserError

DEPTH = 1000  # pieces of work that the host may be ahead of a stream

Span = tuple[float, float]


class _Countdown:
    """An effect that waits for positions of several streams; the worker that reaches the last of them calls it."""

    __slots__ = ("effect", "remaining")

    def __init__(self, effect: Effect, remaining: int) -> None:
        self.effect = effect
        self.remaining = remaining


class WorkerStreams:
    """Three streams on worker threads, an ``EffectClock``. They run until the first error or ``stop``, not beyond.
    Only one host thread may issue work.

    positions    pieces of work issued to each stream; finished: how many of them it has done
    stall        seconds that the compute stream has waited for copies
    depth        pieces of work that the host may be ahead of a stream; beyond that ``issue`` waits
    synchronous  every issue waits until its work is done
    delay        called with the stream before each piece of work (tests: every interleaving must give the same result)
    spans        by stream, position -> (start, end) in seconds of ``now``; None unless ``measure`` was called
    """

    def __init__(self, *, depth: int = DEPTH, synchronous: bool = False) -> None:
        self.depth = depth
        self.synchronous = synchronous
        self.positions = [0, 0, 0]
        self.finished = [0, 0, 0]
        self.stall = 0.0
        self.stood: dict[tuple[int, int], float] = {}  # (stream, position) -> how long the compute stream waited for it
        self.delay: Callable[[int], None] | None = None
        self.spans: tuple[dict[int, Span], ...] | None = None
        self._started = perf_counter()
        self._idle_since = self._started  # when the compute stream finished its latest work
        self._held = False  # the compute stream is at a wait
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._stopped = False
        self.told = False  # the host has been told of the error or of the stop
        # Reentrant, because a finalizer may stop the streams in a thread that holds it.
        self._lock = threading.RLock()
        self._threads: list[threading.Thread | None] = [None, None, None]
        self._queues: list[SimpleQueue[tuple[int, Effect, Timed]]] = [SimpleQueue() for _ in range(3)]
        self._gates: list[list[tuple[int, SimpleQueue[None]]]] = [[], [], []]
        self._countdowns: list[dict[int, list[_Countdown]]] = [{}, {}, {}]

    # The host ------------------------------------------------------------------------------------------------
    def issue(self, stream: int, seconds: float, effect: Effect, *, at_end: bool = False, timed: Timed = None) -> int:
        """Queue work on a stream; return its position. The expected ``seconds`` are not used here.

        timed: called by the worker with the measured seconds, before the position is published.
        Blocks while the host is more than ``depth`` pieces ahead. Raises a worker's error; UserError after ``stop``.
        """
        if self._stopped:
            self._raise_error()
        position = self.positions[stream] + 1
        if position - self.finished[stream] > self.depth:
            # Down to half, or the host would wake up for every single piece of work from now on.
            self._sleep_until(stream, position - 1 - self.depth // 2)
            self.check()
        self._enqueue(stream, position, effect, timed)
        self.positions[stream] = position
        if self.synchronous:
            self.synchronize(stream, position)
        return position

    def wait(self, stream: int, on: int, position: int) -> None:
        """Make later work on ``stream`` start after ``position`` of stream ``on``; the host does not wait."""
        assert position <= self.positions[on], f"position {position} of stream {on} is not issued yet"
        if self.finished[on] < position and not self._stopped:
            self._enqueue(stream, 0, partial(self._wait_in_worker, stream, on, position))

    def synchronize(self, stream: int, position: int) -> None:
        """Block the host until a stream has reached a position. Raises a worker's error; UserError after ``stop``."""
        assert position <= self.positions[stream], f"position {position} of stream {stream} is not issued yet"
        if self.finished[stream] < position:
            start = perf_counter()
            self._sleep_until(stream, position)
            with self._lock:
                # The host would have given the idle compute stream something to do.
                if stream != COMPUTE and self.finished[COMPUTE] == self.positions[COMPUTE] and not self._held:
                    self.stall += perf_counter() - max(start, self._idle_since)
        self.check()

    def when_passed(self, marks: Marks, effect: Effect) -> None:
        """Call an effect when the streams have passed ``marks``, before any work that waits for these marks.

        It makes no stream wait for another, so it does not hide a missing wait. Never raises.
        """
        with self._lock:
            ahead = [(stream, position) for stream, position in enumerate(marks) if position > self.finished[stream]]
            if self._stopped:
                return
            countdown = _Countdown(effect, len(ahead))
            for stream, position in ahead:
                self._countdowns[stream].setdefault(position, []).append(countdown)
        if not ahead:
            effect()

    def check(self) -> None:
        """Raise a worker's error, or UserError after ``stop``."""
        if self._stopped:
            self._raise_error()

    def settle(self) -> None:
        """Block until all work issued to the compute stream has finished. Raises a worker's error."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])

    def now(self) -> float:
        """Return the seconds since these streams were made."""
        return perf_counter() - self._started

    def landed(self, position: int, stream: int = COPY_OUT) -> bool:
        """Return True if the copy at this position of ``stream`` has finished."""
        return self.finished[stream] >= position

    def lateness(self, copied_in: int, computed: int) -> float:
        """Return the seconds that the compute stream has waited so far for the copy in at position ``copied_in``."""
        return self.stood.get((COPY_IN, copied_in), 0.0)

    def end_iteration(self) -> None:
        """Delete the records of waits. Raises a worker's error; UserError after ``stop``."""
        self.check()
        self.stood.clear()

    def measure(self, on: bool = True) -> None:
        """Start or stop recording when each piece of work begins and ends; delete earlier records."""
        self.spans = ({}, {}, {}) if on else None

    def stop(self, error: BaseException | None = None) -> None:
        """Discard queued work and let the workers end, without waiting for them. Any thread may call it at any time."""
        with self._lock:
            if self._stopped:
                return
            if error is not None:
                self._error, self._traceback = error, error.__traceback__
            self._stopped = True
            for countdowns in self._countdowns:
                countdowns.clear()
            for stream in range(3):
                self._queues[stream].put((0, _nothing, None))
                for _, gate in self._gates[stream]:
                    gate.put(None)

    def close(self) -> None:
        """Discard queued work, and wait until each worker has finished the piece that it is carrying out."""
        self.stop()
        for thread in self._threads:
            if thread is not None and thread is not threading.current_thread():
                thread.join()

    def abandon(self) -> None:
        """Forget the workers after a fork: they exist only in the parent process."""
        self._lock = threading.RLock()
        self._threads = [None, None, None]
        self._stopped = True
        if self._error is None:
            self._error = UserError("this device was made before a fork: the child process must make one of its own")

    def _raise_error(self) -> NoReturn:
        self.told = True
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        raise UserError("this device was closed")

    def _enqueue(self, stream: int, position: int, effect: Effect, timed: Timed = None) -> None:
        self._queues[stream].put((position, effect, timed))
        if self._threads[stream] is None:  # a device that never swaps has no threads for copies
            thread = threading.Thread(target=self._work, args=(stream,), name=f"minidl {STREAM_NAMES[stream]}",
                                      daemon=True)
            self._threads[stream] = thread
            _running.add(self)
            thread.start()

    def _sleep_until(self, stream: int, position: int) -> None:
        """Sleep until a stream has finished a position, or all have stopped."""
        with self._lock:
            if self.finished[stream] >= position or self._stopped:
                return
            gate: SimpleQueue[None] = SimpleQueue()
            self._gates[stream].append((position, gate))
        gate.get()

    # The workers ---------------------------------------------------------------------------------------------
    def _work(self, stream: int) -> None:
        take = self._queues[stream].get
        position = 0
        while True:
            done, effect, timed = take()
            if self._stopped:
                return
            try:
                if done:
                    position = done
                    self._perform(stream, position, effect, timed)
                else:
                    effect()
            except BaseException as error:
                error.add_note(f"on the {STREAM_NAMES[stream]} stream, at position {position}")
                self.stop(error)
                return
            del effect, timed  # else they would keep their arrays alive until the next work comes

    def _perform(self, stream: int, position: int, effect: Effect, timed: Timed) -> None:
        if self.delay is not None:
            self.delay(stream)
        start = perf_counter()
        effect()
        end = perf_counter()
        if timed is not None:
            timed(end - start)
        spans = self.spans
        if spans is not None:
            spans[stream][position] = (start - self._started, end - self._started)
        with self._lock:
            for countdown in self._countdowns[stream].pop(position, ()):
                countdown.remaining -= 1
                if not countdown.remaining:
                    countdown.effect()
            self.finished[stream] = position
            if stream == COMPUTE:
                self._idle_since = perf_counter()
            waiting = self._gates[stream]
            if waiting:
                self._gates[stream] = [entry for entry in waiting if entry[0] > position]
                for wanted, gate in waiting:
                    if wanted <= position:
                        gate.put(None)

    def _wait_in_worker(self, stream: int, on: int, position: int) -> None:
        """Wait, in a worker, for another stream."""
        if self.finished[on] >= position:
            return
        start = perf_counter()
        if stream == COMPUTE:
            self._held = True
        self._sleep_until(on, position)
        if stream == COMPUTE:
            with self._lock:
                self._held = False
                seconds = perf_counter() - start
                self.stall += seconds
                self.stood[on, position] = seconds


def _nothing() -> None:
    """Do nothing: a task that wakes up a worker which must end."""


_running: "weakref.WeakSet[WorkerStreams]" = weakref.WeakSet()


def _abandon_all() -> None:
    """Mark all streams as stopped in the child of a fork, which has no workers, and replace the locks they may hold."""
    for streams in list(_running):
        streams.abandon()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


@atexit.register
def _close_all() -> None:
    """Stop all workers at exit: none may be inside a kernel when the interpreter shuts down."""
    for streams in list(_running):
        streams.close()
