"""Time on a device with three in-order streams: positions, marks, and the virtual clock.

  compute    kernels, and copies within the arena
  copy-out   device to host
  copy-in    host to device

An event is a position: the number of pieces of work issued to a stream so far. To wait for position p of a stream is to
wait until its first p pieces of work have finished. Position 0 is always in the past. Marks are one position for each
stream.

``VirtualClock`` computes the times of all work, and keeps a list (the agenda) of effects in time order. An effect is a
function without arguments that does the work, such as a kernel. Ties are broken by the order in which work was issued,
so every run of a program gives the same interleaving. Clocks (``clock_interface``) know no kernels, bytes or tensors.
"""

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush

COMPUTE, COPY_OUT, COPY_IN = 0, 1, 2
STREAM_NAMES = ("compute", "copy-out", "copy-in")

Effect = Callable[[], None]
Timed = Callable[[float], None] | None  # called with the device seconds of a piece of work, once they are known

Marks = tuple[int, int, int]
"""The last position on the (compute, copy-out, copy-in) stream that used some bytes."""

NO_MARKS: Marks = (0, 0, 0)

Extents = tuple[tuple[int, int], ...]
"""Pieces of host memory, each (offset, nbytes), in the order in which they hold a copy's bytes."""


def unite_marks(a: Marks, b: Marks) -> Marks:
    """Return, for each stream, the later of two positions: waiting for the result means waiting for both."""
    (a0, a1, a2), (b0, b1, b2) = a, b
    if b0 >= a0 and b1 >= a1 and b2 >= a2:
        return b  # the usual case: b is of later work
    return (a0 if a0 > b0 else b0, a1 if a1 > b1 else b1, a2 if a2 > b2 else b2)


class VirtualClock:
    """Virtual time of three streams and of the host that issues work to them; an ``EffectClock``.

    host   the host's own time: it advances when a launch costs host time, or when the host waits
    ready  when each stream will have finished all work issued to it
    busy   seconds that each stream has worked
    stall  seconds in which the compute stream had nothing to do but wait for copies or exchanges
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
        """Queue work on a stream; return its position. The effect happens when the work starts, or ends (``at_end``).
        timed: called at once with ``seconds``, which are known here."""
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
        """Put an effect on the agenda: the first ``carry_out`` calls it for which the host's time is at least ``time``.
        """
        self._issued += 1
        heappush(self._agenda, (time, self._issued, effect))

    def finish_time(self, stream: int, position: int) -> float:
        """Return the time at which a stream reaches a position."""
        return self._finished[stream][max(0, position - self._first[stream])]

    def wait(self, stream: int, on: int, position: int) -> None:
        """Make later work on ``stream`` start after ``position`` of stream ``on``; the host does not wait."""
        self.hold(stream, self.finish_time(on, position))

    def hold(self, stream: int, time: float) -> None:
        """Make later work on ``stream`` start at ``time`` or later."""
        now = max(self.ready[stream], self.host)
        if time > now:
            if stream == COMPUTE:
                self.stall += time - now
            self.ready[stream] = time

    def synchronize(self, stream: int, position: int) -> None:
        """Advance the host to the time at which a stream reaches a position; call the effects due by then."""
        time = self.finish_time(stream, position)
        if time > self.host:
            if stream != COMPUTE:
                self.stall += max(0.0, time - max(self.ready[COMPUTE], self.host))
            self.host = time
        self.carry_out()

    def carry_out(self) -> None:
        """Call the effects that are due at the host's time: no work issued later can start before that time."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= self.host:
            heappop(agenda)[2]()

    def when_passed(self, marks: Marks, effect: Effect) -> None:
        """Put an effect on the agenda; it is called when each stream has passed its position in ``marks``."""
        self.at(max(self.finish_time(stream, position) for stream, position in enumerate(marks)), effect)

    def settle(self) -> None:
        """Do nothing: modelled times are known when work is issued."""

    def now(self) -> float:
        """Return the time at which the host and the compute stream will have finished all work issued so far."""
        return max(self.host, self.ready[COMPUTE])

    def landed(self, position: int, stream: int = COPY_OUT) -> bool:
        """Return True if the copy at this position of ``stream`` ends before the compute stream's work so far does."""
        return self.finish_time(stream, position) <= max(self.ready[COMPUTE], self.host)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Return how many seconds the copy in at position ``copied_in`` ends too late: at least 0.
        The copy was due when the compute stream reached position ``computed``."""
        return max(0.0, self.finish_time(COPY_IN, copied_in) - self.finish_time(COMPUTE, computed))

    def end_iteration(self) -> None:
        """Delete finish times that have passed, except for the last, which stands for all of them."""
        now = max(self.host, self.ready[COMPUTE])
        for stream, finished in enumerate(self._finished):
            past = max(0, bisect_right(finished, now) - 1)
            self._first[stream] += past
            del finished[:past]
