"""Time on a device: what any clock of three in-order streams can be asked, and the virtual one.

    compute    kernels, and copies within the arena
    copy-out   device to host
    copy-in    host to device

An event is a position: the number of pieces of work issued to a stream so far. Waiting for position p of a stream
means waiting until its first p pieces have finished. Position 0 is always in the past.

``Clock`` is what every device asks of its clock, ``EffectClock`` one that also carries out functions in stream order.
``VirtualClock`` computes when everything happens and keeps an agenda of effects in time order; ties are broken by the
order in which work was issued, so every run of the same program gives the same interleaving. Two more clocks run on the
wall's time: ``cpu.workers.WorkerStreams`` and ``cuda.streams.EventStreams``. None of them knows kernels, bytes or
tensors: an effect is any function without arguments.
"""

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

COMPUTE, COPY_OUT, COPY_IN = 0, 1, 2
STREAM_NAMES = ("compute", "copy-out", "copy-in")

Effect = Callable[[], None]
Timed = Callable[[float], None] | None  # is told the device seconds of a piece of work, once they are known

Marks = tuple[int, int, int]
"""The last position on the (compute, copy-out, copy-in) stream that used some bytes."""

NO_MARKS: Marks = (0, 0, 0)

Extents = tuple[tuple[int, int], ...]
"""Pieces of host memory, each (offset, nbytes), in the order in which they hold a copy's bytes."""


def unite_marks(a: Marks, b: Marks) -> Marks:
    """The elementwise maximum: who waits for it has waited for both."""
    (a0, a1, a2), (b0, b1, b2) = a, b
    return (a0 if a0 > b0 else b0, a1 if a1 > b1 else b1, a2 if a2 > b2 else b2)


class Clock(Protocol):
    """The time of three streams, virtual or real. Times are in seconds since the clock was made.

    positions  how many pieces of work each stream was given: always the same list
    stall      how long the compute stream has stood still for copies
    """

    positions: list[int]
    stall: float

    def wait(self, stream: int, on: int, position: int) -> None:
        """Work issued to ``stream`` from now on starts after ``position`` of stream ``on``; the host continues."""

    def synchronize(self, stream: int, position: int) -> None:
        """The host waits for a position of a stream."""

    def settle(self) -> None:
        """Return when the times of all that the compute stream was given are known."""

    def now(self) -> float:
        """The time: on the virtual clock, when all that was issued so far has finished."""

    def landed(self, copied_out: int) -> bool:
        """True if a copy out will have finished, as far as is known, when the work issued so far has."""

    def lateness(self, copied_in: int, computed: int) -> float:
        """Seconds that the compute stream stood still for a copy in, which was to be ready when that stream had
        reached ``computed``; on the wall's time, as far as is known."""

    def end_iteration(self) -> None:
        """An iteration has ended: drop what was noted for it."""


class EffectClock(Clock, Protocol):
    """A clock that carries out functions in stream order."""

    def issue(self, stream: int, seconds: float, effect: Effect, *, at_end: bool = False, timed: Timed = None) -> int:
        """Queue an effect on a stream; returns its position.

        seconds: what it is expected to take. at_end: on the virtual clock it happens when that time is over, and not
        when it begins. timed: told the seconds that it takes, once they are known.
        """

    def when_passed(self, marks: Marks, effect: Effect) -> None:
        """Carry out an effect when the streams have passed ``marks``, before anything that waits for these."""


class VirtualClock:
    """Virtual time of three streams and of the host that issues to them; an ``EffectClock``.

    host   the host's own time: it moves when a launch costs something, or the host waits
    ready  when each stream has finished all that was issued to it
    busy   seconds that each stream has worked
    """

    def __init__(self) -> None:
        self.host = 0.0
        self.ready = [0.0, 0.0, 0.0]
        self.positions = [0, 0, 0]
        self.stall = 0.0
        self.busy = [0.0, 0.0, 0.0]
        self._finished: list[list[float]] = [[0.0], [0.0], [0.0]]  # finish time by position - first
        self._first = [0, 0, 0]  # positions before these were forgotten
        self._agenda: list[tuple[float, int, Effect]] = []
        self._issued = 0

    def issue(self, stream: int, seconds: float, effect: Effect | None = None, *,
              at_end: bool = False, timed: Timed = None) -> int:
        """Queue work on a stream; returns its position. Its effect happens when it starts, or when it ends.

        timed: told the seconds that the work takes, as soon as they are known: here at once.
        """
        start = self.ready[stream]
        if start < self.host:
            start = self.host
        end = start + seconds
        self.ready[stream] = end
        self.busy[stream] += seconds
        self._finished[stream].append(end)
        if effect is not None:
            self.at(end if at_end else start, effect)
        if timed is not None:
            timed(seconds)
        self.positions[stream] = position = self.positions[stream] + 1
        return position

    def at(self, time: float, effect: Effect) -> None:
        """Put an effect on the agenda."""
        self._issued += 1
        heappush(self._agenda, (time, self._issued, effect))

    def finish_time(self, stream: int, position: int) -> float:
        """When a stream reaches a position."""
        return self._finished[stream][max(0, position - self._first[stream])]

    def wait(self, stream: int, on: int, position: int) -> None:
        """Work issued to ``stream`` from now on starts after ``position`` of stream ``on``; the host continues."""
        time = self.finish_time(on, position)
        now = max(self.ready[stream], self.host)
        if time > now:
            if stream == COMPUTE:
                self.stall += time - now
            self.ready[stream] = time

    def synchronize(self, stream: int, position: int) -> None:
        """The host waits for a position of a stream; effects up to then have happened."""
        time = self.finish_time(stream, position)
        if time > self.host:
            if stream != COMPUTE:
                self.stall += max(0.0, time - max(self.ready[COMPUTE], self.host))
            self.host = time
        self.carry_out()

    def carry_out(self) -> None:
        """Carry out the effects whose time has come: nothing issued later can start before the host's time."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= self.host:
            heappop(agenda)[2]()

    def when_passed(self, marks: Marks, effect: Effect) -> None:
        """Put an effect on the agenda for when the last of the streams passes its mark."""
        self.at(max(self.finish_time(stream, position) for stream, position in enumerate(marks)), effect)

    def settle(self) -> None:
        """Nothing to wait for: modelled times are known when work is issued."""

    def now(self) -> float:
        """When the host and the compute stream have finished all that was issued so far."""
        return max(self.host, self.ready[COMPUTE])

    def landed(self, copied_out: int) -> bool:
        """True if a copy out will have finished when the host and the compute stream have."""
        return self.finish_time(COPY_OUT, copied_out) <= max(self.ready[COMPUTE], self.host)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Seconds by which a copy in, to be ready when the compute stream had reached ``computed``, comes too late."""
        return max(0.0, self.finish_time(COPY_IN, copied_in) - self.finish_time(COMPUTE, computed))

    def end_iteration(self) -> None:
        """Drop the finish times before now, but for the last: a wait for one of them waits for the oldest that is kept,
        which must be in the past too."""
        now = max(self.host, self.ready[COMPUTE])
        for stream, finished in enumerate(self._finished):
            past = max(0, bisect_right(finished, now) - 1)
            self._first[stream] += past
            del finished[:past]
