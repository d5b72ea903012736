"""Predicts how fast a recorded step is in several budgets, from its floor to its unmanaged peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minidl.outside.units import format_bytes
from minidl.plan.costs import Costs, Limits
from minidl.torch.budget import Floor, floor_of
from minidl.torch.planned import unmanaged
from minidl.torch.planner import Planner
from minidl.torch.seen import Seen

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the way from the floor to the unmanaged peak


@dataclass(frozen=True)
class Point:
    """A budget, the peak of the plan for that budget, and the predicted duration of a step with that plan.
    slower: duration as a multiple of a step without evictions. state_stays: share of optimizer state on the device."""

    budget_bytes: int
    peak_bytes: int
    slower: float
    state_stays: float = 1.0

    def __str__(self) -> str:
        return f"{format_bytes(self.budget_bytes):>10}  x{self.slower:.2f}"


@dataclass(frozen=True)
class Fit:
    """The floor of a step, its unmanaged peak, and predictions for budgets between these, the largest budget first."""

    floor: Floor
    unmanaged_bytes: int
    points: tuple[Point, ...]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __str__(self) -> str:
        lines = [f"unmanaged peak {format_bytes(self.unmanaged_bytes)}", f"floor {self.floor}",
                 "    budget  step, predicted"]
        return "\n".join([*lines, *map(str, self.points)])


def fit(seen: Seen, planner: Planner, costs: Costs, limits: Limits, *, shares: Sequence[float] = SHARES) -> Fit:
    """Return the floor, the unmanaged peak, and a prediction for budgets at these shares of the way between the two."""
    floor, most = floor_of(seen, costs, limits), unmanaged(seen.staying(1.0).trace)
    alone = max(seen.trace.seconds, 1e-12)
    points = []
    for share in shares:
        budget = floor.nbytes + round(share * (most - floor.nbytes))
        best = planner.best(seen, costs, replace(limits, device_bytes=budget))
        points.append(Point(budget, best.obeyed.peak_bytes, best.seconds / alone, best.share))
    return Fit(floor, most, tuple(points))
