"""Virtual time: three in-order streams, events as positions on them, and an agenda of effects in time order.

One owner of time. Ties are broken by the order in which work was issued, so every run of the same program gives the
same interleaving. Knows no kernels, bytes or tensors: an effect is any function without arguments.

An event is a position: the number of pieces of work issued to a stream so far. Waiting for position p of a stream
means waiting until its first p pieces have finished. Position 0 is always in the past.
"""

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush

COMPUTE, COPY_OUT, COPY_IN = 0, 1, 2
STREAM_NAMES = ("compute", "copy-out", "copy-in")


class VirtualClock:
    """Times in seconds since the start. ``stall`` is how long the compute stream stood still for copies."""

    def __init__(self) -> None:
        self.host = 0.0
        self.ready = [0.0, 0.0, 0.0]  # when each stream has finished all that was issued to it
        self.positions = [0, 0, 0]  # how much was issued to each stream
        self.stall = 0.0
        self.busy = [0.0, 0.0, 0.0]
        self._finished: list[list[float]] = [[0.0], [0.0], [0.0]]  # finish time by position - first
        self._first = [0, 0, 0]  # positions before these were forgotten
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._issued = 0

    def issue(self, stream: int, seconds: float, effect: Callable[[], None] | None = None, *,
              at_end: bool = False, timed: Callable[[float], None] | None = None) -> int:
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

    def at(self, time: float, effect: Callable[[], None]) -> None:
        """Put an effect on the agenda."""
        self._issued += 1
        heappush(self._agenda, (time, self._issued, effect))

    def finish_time(self, stream: int, position: int) -> float:
        """When a stream reaches a position."""
        return self._finished[stream][max(0, position - self._first[stream])]

    def wait(self, stream: int, on: int, position: int) -> None:
        """What is issued to ``stream`` from now on starts after ``position`` of stream ``on``; the host goes on."""
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
        self.settle()

    def settle(self) -> None:
        """Carry out the effects whose time has come: nothing issued later can start before the host's time."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= self.host:
            heappop(agenda)[2]()

    def forget(self) -> None:
        """Drop the finish times before now, but for the last: a wait for one of them waits for the oldest that is kept,
        which must be in the past too."""
        now = max(self.host, self.ready[COMPUTE])
        for stream, finished in enumerate(self._finished):
            past = max(0, bisect_right(finished, now) - 1)
            self._first[stream] += past
            del finished[:past]
