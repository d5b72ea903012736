"""How fast a recorded step is predicted to be by budget, from its floor to what it takes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from minidl.errors import Unsuitable
from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs, Limits
from minidl.plan.policy import Policy
from minidl.planning.compiled import simulate
from minidl.planning.modes import modes_of
from minidl.planning.problem import problem
from minidl.planning.schedule import NO_NOTES
from minidl.planning.timing import Room
from minidl.torch.planned import everything, obeyed, proposed, unmanaged
from minidl.torch.tracing import Seen

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the way from the floor to the unmanaged peak


@dataclass(frozen=True)
class Point:
    """A budget, the peak of the plan for it, and how long its step is predicted to take, as a multiple of a step that
    moves nothing."""

    budget_bytes: int
    peak_bytes: int
    slower: float

    def __str__(self) -> str:
        return f"{format_bytes(self.budget_bytes):>10}  x{self.slower:.2f}"


def fit(seen: Seen, policy: Policy, costs: Costs, limits: Limits, *, recompute: bool, shares: Sequence[float] = SHARES
        ) -> list[Point]:
    """A point for each share. A budget that the policy has no plan for is completed by swapping."""
    floor, most = everything(seen, costs, limits), unmanaged(seen.trace)
    facts = problem(seen.trace, costs)
    points = []
    for share in shares:
        within = replace(limits, device_bytes=floor + round(share * (most - floor)))
        try:
            plan = proposed(policy, seen, costs, within).plan
        except Unsuitable:
            continue
        found = obeyed(plan, seen, costs, within, recompute=recompute)
        mode = modes_of(found.plan, facts, seen.trace)
        outcome = simulate(facts, Room(within.device_bytes, within.host_bytes, 0.0), mode,
                           np.full(len(mode), -1, np.int64), NO_NOTES)
        points.append(Point(within.device_bytes, found.peak_bytes, outcome.seconds / facts.seconds))
    return points
