"""The limit on planning time: a small share of a run's time, so that planning costs less than it gains.

Planning runs in the training thread. On a simulated device it takes no device time, so only the planners' own limits
apply; these count work, not seconds, and a simulated run is therefore reproducible. On the wall clock a planner is
called again only if another call as long as the longest so far stays within the share. First plans are exempt, because
without them there is no gain; the planners' own limits bound their work. The seconds of compiling the planners, once on
a machine, do not count in the length of a call: the next call does not compile.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minidl.outside.stages import COMPILATION, stage

SHARE = 0.02  # of the run so far


class Allowance:
    """Counts the seconds of a run and the seconds spent on planning.

    seconds        planning time so far, first plans included, on this machine's clock.
    first_seconds  the part of ``seconds`` that first plans took.
    run_seconds    time of the iterations so far, on the device's clock, without planning.
    """

    def __init__(self, clock: Callable[[], float], *, limited: bool) -> None:
        """clock: returns this machine's time in seconds; limited: True if planning takes time from the run."""
        self.limited = limited
        self.seconds = self.run_seconds = 0.0
        self._clock = clock
        self.first_seconds = self._longest = 0.0

    @property
    def open(self) -> bool:
        """True if another call of a planner, as long as the longest, keeps planning within 2% of ``run_seconds``.
        First plans do not count in the sum, but one may be the longest. Always True if planning is not limited."""
        return not self.limited or self.seconds - self.first_seconds + self._longest <= SHARE * self.run_seconds

    @property
    def share(self) -> float | None:
        """The fraction of the run spent on planning, first plans included; None without any, or on simulated time."""
        return self.seconds / (self.run_seconds + self.seconds) if self.limited and self.seconds else None

    @contextmanager
    def planning(self, *, exempt: bool = False) -> Iterator[None]:
        """Measure the time of a ``with`` block in which a planner runs.
        exempt: it makes a first plan, whose time does not count towards the limit (``open``)."""
        began, compiled = self._clock(), COMPILATION.seconds
        try:
            with stage("planning"):
                yield
        finally:
            took = self._clock() - began
            self.seconds += took
            self._longest = max(self._longest, took - (COMPILATION.seconds - compiled))
            if exempt:
                self.first_seconds += took
