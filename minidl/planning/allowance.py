"""How long planning may take: a small share of the run, so that it costs less than it gains. Knows no plan.

Planning goes on in the training's own thread. Where device time is modelled it costs none of that, and only the
planners' own limits, which count work, hold: so a simulated run is the same every time. On the wall clock a planner is
asked again only if an answer that takes as long as the longest so far stays within the share. First plans are exempt,
since without them there is nothing to gain; how much work they may be is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 0.02  # of the run so far


class Allowance:
    """Counts a run's seconds and those of planning.

    seconds        of planning so far, first plans included, on this machine's clock.
    first_seconds  of the first plans among these.
    run_seconds    of the iterations so far, on the device's clock, without planning.
    """

    def __init__(self, clock: Callable[[], float], *, limited: bool) -> None:
        """clock: this machine's; limited: whether planning takes from the run's own time."""
        self.limited = limited
        self.seconds = self.run_seconds = 0.0
        self._clock = clock
        self.first_seconds = self._longest = 0.0

    @property
    def open(self) -> bool:
        """True if another answer of a planner stays within the share."""
        return not self.limited or self.seconds - self.first_seconds + self._longest <= SHARE * self.run_seconds

    @property
    def share(self) -> float | None:
        """Of the run that planning took so far, first plans included; None where the run's time is modelled."""
        return self.seconds / (self.run_seconds + self.seconds) if self.limited and self.seconds else None

    @contextmanager
    def planning(self, *, exempt: bool = False) -> Iterator[None]:
        """Around all that a planner is asked."""
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            self.seconds += took
            self._longest = max(self._longest, took)
            if exempt:
                self.first_seconds += took
