"""Detects lasting changes in the speed of copies between device and host.

On a real machine the times of single copies vary by far more than 10%, which means nothing. But if copies are faster or
slower in several iterations in a row, the plan is simulated with the new costs. A new plan is made only if the
predicted time of the iteration has changed by more than noise, and followed only if it is better by more than noise.
"""

from collections import deque
from dataclasses import replace
from statistics import median

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.spread import spread
from minidl.plan.trace import Trace

DRIFT = 1.1  # copies may be slower or faster than the known costs by this factor
DRIFT_ITERATIONS = 3  # so many iterations in a row must differ: a single one may have been disturbed
REMEMBERED = 9  # the noise is computed from the seconds of so many iterations
LEAST_NOISE = 0.01  # the least noise, as a share of an iteration's seconds: the simulation's own error


class Drift:
    """Watches the measured seconds per byte of copies. costs: the costs that plans assume at present."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._other: list[Costs] = []  # the costs of the latest iterations, as long as each differs from ``costs``

    def lasting(self, link: tuple[float | None, float | None]) -> Costs | None:
        """Record an iteration's measured seconds per byte (copies out, copies in); None for a direction without copies.
        Returns new costs if the last iterations have all differed from ``costs`` by more than 10%; else None."""
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
    """Simulate an iteration under a plan's evictions and return its seconds; the simulation chooses the in-triggers."""
    import numpy as np  # a run without drift needs no numerics

    from minidl.planning.compiled import simulate
    from minidl.planning.modes import modes_of, waiting
    from minidl.planning.problem import problem
    from minidl.planning.schedule import NO_NOTES
    from minidl.planning.timing import Room

    facts = waiting(problem(trace, costs, budget=0), plan, trace)
    mode = modes_of(plan, facts)
    room = Room(limits.device_bytes, limits.host_bytes, 0.0)
    return float(simulate(facts, room, mode, np.full(len(mode), -1, np.int64), NO_NOTES).seconds)


def noise(seconds: deque[float]) -> float:
    """Return the noise of durations: their median distance from the median, as a fraction of it; 0.01 or more."""
    return max(LEAST_NOISE, spread(seconds))
