"""Detects lasting changes of the link's speed.

On a real machine single copies vary by far more than a tenth, which means nothing. But if the link is different for
several iterations in a row, the plan is simulated with the new costs. A new plan is made only if the iteration would
differ by more than noise, and followed only if it is better by more than noise.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.spread import spread
from minidl.plan.trace import Trace

DRIFT = 1.1  # a copy's time may differ by this factor from the costs judged last
DRIFT_ITERATIONS = 3  # in a row: a single one may have been disturbed
REMEMBERED = 9  # iterations whose seconds give the noise
LEAST_NOISE = 0.01  # the least noise, as a share of an iteration: the simulation's own error


class Drift:
    """Watches the seconds per byte on the link. ``costs`` are those judged last."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._other: list[Costs] = []  # of the latest iterations, while they differ

    def lasting(self, link: tuple[float | None, float | None]) -> Costs | None:
        """Note an iteration's seconds per byte, out and in; returns new costs if they have differed for long enough."""
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
    """Simulated seconds of an iteration under a plan's evictions, with swap-ins as early as they must be."""
    import numpy as np  # a run without drift needs no numerics

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
    """The noise of some iterations' seconds: half of them are within this share of their median."""
    return max(LEAST_NOISE, spread(seconds))
