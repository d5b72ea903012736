"""The interface of clocks: the methods that every device calls on its clock.

``clock.VirtualClock`` computes times. Two clocks use real time: ``cpu.workers.WorkerStreams`` and
``cuda.streams.EventStreams``.
"""

from typing import Protocol

from minidl.device.clock import COPY_OUT, Effect, Marks, Timed


class Clock(Protocol):
    """The clock of three streams, virtual or real. Times are in seconds since the clock was made.

    positions  how many pieces of work were issued to each stream; always the same list object
    stall      seconds that the compute stream has waited for copies
    """

    positions: list[int]
    stall: float

    def wait(self, stream: int, on: int, position: int) -> None:
        """Make later work on ``stream`` start after ``position`` of stream ``on``; the host does not wait."""

    def synchronize(self, stream: int, position: int) -> None:
        """Block the host until a stream has reached a position."""

    def settle(self) -> None:
        """Block the host until the times of all work issued to the compute stream are known.
        With real time that is when the work has ended; the virtual clock knows them when the work is issued."""

    def now(self) -> float:
        """Return the time in seconds. The virtual clock returns when all work issued so far will have finished."""

    def landed(self, position: int, stream: int = COPY_OUT) -> bool:
        """Return True if no later kernel would wait for the copy at this position of ``stream``.
        A real clock asks if it has ended, the virtual clock if it ends before the compute stream's work issued so
        far."""

    def lateness(self, copied_in: int, computed: int) -> float:
        """Return how many seconds the compute stream waited for the copy in at position ``copied_in``.
        The copy was due when the compute stream reached position ``computed``."""

    def end_iteration(self) -> None:
        """Delete the records of the iteration that has ended."""


class EffectClock(Clock, Protocol):
    """A clock that also calls functions in stream order."""

    def issue(self, stream: int, seconds: float, effect: Effect, *, at_end: bool = False, timed: Timed = None) -> int:
        """Queue an effect on a stream; return its position.

        seconds: its expected duration. at_end: on the virtual clock, call the effect at the end of that duration
        instead of at its start. timed: called with the seconds that the effect takes, once they are known.
        """

    def when_passed(self, marks: Marks, effect: Effect) -> None:
        """Call an effect when the streams have passed ``marks``, before any work that waits for these marks."""
