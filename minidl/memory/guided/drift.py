"""Whether copies have come to take so much longer, or shorter, than planned that plans are to be made anew.

On a real machine copies vary by far more than a tenth and mean nothing: what counts is what they do to the plan that is
followed. So when the link has been different for several iterations in a row, that plan is simulated with the new
costs. Only if its iteration would differ by more than iterations that are alike differ by themselves is a new one made,
and only if the new one is better by more than that is it followed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.spread import spread
from minidl.plan.trace import Trace

DRIFT = 1.1  # how far a copy's time may be from what was judged last
DRIFT_ITERATIONS = 3  # in a row: a single one may have been disturbed
REMEMBERED = 9  # iterations whose seconds tell how much they differ by themselves
LEAST_NOISE = 0.01  # of an iteration, where all took the same: what the simulation is off


class Drift:
    """Watches what a byte takes on the link; ``costs`` are those that were judged last."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._other: list[Costs] = []  # in the latest iterations, while they are not as judged last

    def lasting(self, link: tuple[float | None, float | None]) -> Costs | None:
        """Note an iteration's seconds a byte out and in; costs that have been different for long enough, if any are."""
        costs = self.costs
        seen = replace(costs, out_seconds_per_byte=link[0] or costs.out_seconds_per_byte,
                       in_seconds_per_byte=link[1] or costs.in_seconds_per_byte)
        ratios = (seen.out_seconds_per_byte / costs.out_seconds_per_byte,
                  seen.in_seconds_per_byte / costs.in_seconds_per_byte)
        if all(1.0 / DRIFT <= ratio <= DRIFT for ratio in ratios):
            self._other.clear()
            return None
        self._other.append(seen)
        if len(self._other) < DRIFT_ITERATIONS:
            return None
        self.costs = replace(costs, out_seconds_per_byte=median(c.out_seconds_per_byte for c in self._other),
                             in_seconds_per_byte=median(c.in_seconds_per_byte for c in self._other))
        self._other.clear()
        return self.costs


def predicted_seconds(plan: Plan, trace: Trace, costs: Costs, limits: Limits) -> float:
    """What an iteration takes with the evictions of a plan and swap-ins as early as they must be."""
    import numpy as np  # a run in which nothing drifts does without these

    from minidl.planning.compiled import simulate
    from minidl.planning.modes import modes_of, waiting
    from minidl.planning.problem import problem
    from minidl.planning.schedule import NO_NOTES
    from minidl.planning.timing import Room

    facts = waiting(problem(trace, costs), plan, trace)
    mode = modes_of(plan, facts, trace)
    room = Room(limits.device_bytes, limits.host_bytes, 0.0)
    return float(simulate(facts, room, mode, np.full(len(mode), -1, np.int64), NO_NOTES).seconds)


def noise(seconds: deque[float]) -> float:
    """How far from their median half of some iterations were, as a share of it."""
    return max(LEAST_NOISE, spread(seconds))
