"""The floor of a step (the fewest bytes in which it can run, and their parts), and the error for a smaller budget.

It also predicts how fast a recorded step is in several budgets, from its floor to its unmanaged peak.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minidl.errors import UserError
from minidl.outside.units import format_bytes, parse_bytes
from minidl.plan.costs import Costs, Limits
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.modes import to_plan
from minidl.planning.problem import SWAP, problem
from minidl.torch.planned import Obeyed, bytes_during, obeyed, unmanaged
from minidl.torch.planner import Planner
from minidl.torch.seen import Kind, Seen

AT_WORK, STAYS = "at work", "other tensors that stay"


class BudgetTooSmall(UserError, MemoryError):
    """The error for a step that does not fit into the budget even with everything evicted that can be evicted.

    budget_bytes, need_bytes  the budget, and the fewest bytes that the step is known to need.
    parts                     what need_bytes consist of: a name such as "parameters" -> bytes.
    """

    def __init__(self, message: str, *, budget_bytes: int, need_bytes: int, parts: Mapping[str, int]) -> None:
        super().__init__(message)
        self.budget_bytes, self.need_bytes, self.parts = budget_bytes, need_bytes, parts


@dataclass(frozen=True)
class Floor:
    """The peak of a step during which everything is evicted that can be evicted, and the parts of this peak.

    at     the call at the peak: its operation, and where in the program it comes from.
    parts  name -> bytes: parameters, gradients, optimizer state, other tensors that stay, and what the call works on.
    """

    nbytes: int
    at: str
    parts: Mapping[str, int]

    def __str__(self) -> str:
        return self.told(format_bytes(self.nbytes))

    def told(self, size: str) -> str:
        """Return the floor as text, with ``size`` for its bytes."""
        return f"{size}, at {self.at}: {_listed(self.parts)}"


def floor_of(seen: Seen, costs: Costs, limits: Limits) -> Floor:
    """Return the floor of a recorded step: its peak if every tensor that may be swapped out is swapped out."""
    facts = problem(seen.trace, costs)
    mode = np.full(len(facts.gap_call), SWAP, np.int64)
    during = bytes_during(facts, mode, np.full(len(mode), -1, np.int64), limits, ahead=False)
    assert during is not None  # nothing is replayed
    calls, most = during
    if not len(most):
        return Floor(0, "no call", {})
    worst = int(np.argmax(most))
    call = int(calls[worst])
    op, origin = seen.trace.calls[call].op, seen.origins[call] if seen.origins else ""
    return Floor(int(most[worst]), f"{op} ({origin})" if str(origin) else op, _parts(seen, call, int(most[worst])))


def fullest(seen: Seen, costs: Costs, limits: Limits) -> Obeyed:
    """Return the plan of the floor: every tensor that may be swapped out is swapped out in every gap."""
    facts = problem(seen.trace, costs)
    mode = np.full(len(facts.gap_call), SWAP, np.int64)
    plan = to_plan(seen.trace, facts, mode, np.full(len(mode), -1, np.int64))
    return obeyed(plan, seen, costs, limits, recompute=False)


def _parts(seen: Seen, call: int, total: int) -> dict[str, int]:
    """Return name -> bytes in use during a call. total: all bytes; those of no known tensor are the call's own work."""
    lives = Lifetimes.of(seen.trace)
    parts = dict.fromkeys([*(kind.value for kind in Kind), STAYS], 0)
    for tensor_id, nbytes in lives.nbytes.items():
        left, back = (seen.trace.windows or {}).get(tensor_id, (call, call))
        if not lives.made[tensor_id] <= call <= lives.freed[tensor_id] or left < call < back:
            continue
        kind = seen.kinds.get(tensor_id)
        if kind is not None:
            parts[kind.value] += nbytes
        elif seen.trace.tensors[tensor_id].persistent:
            parts[STAYS] += nbytes
    parts[AT_WORK] = max(0, total - sum(parts.values()))
    return {name: nbytes for name, nbytes in parts.items() if nbytes}


def refuse(budget: int, floor: Floor, *, states: bool, full_host: int = 0) -> None:
    """Raise BudgetTooSmall, since the budget is below the floor. states: the floor has optimizer state on the host.
    full_host: the bytes of the host, if they had no room for all that the recorded step sent there; else 0."""
    away = "saved tensors and the optimizer's state" if states else "saved tensors"
    why = f"the host's {format_bytes(full_host)} are full, so" if full_host else f"with all {away} away"
    given, need = _apart(budget, floor.nbytes)
    raise BudgetTooSmall(f"budget {given}: {why} this step needs {floor.told(need)}",
                         budget_bytes=budget, need_bytes=floor.nbytes, parts=floor.parts)


def refuse_early(budget: int, parts: Mapping[str, int], when: str) -> None:
    """Raise BudgetTooSmall if the bytes of ``parts`` (name -> bytes) exceed the budget. when: for the message."""
    need = sum(parts.values())
    if need > budget:
        given, there = _apart(budget, need)
        raise BudgetTooSmall(f"budget {given}: {when} there are {there}: {_listed(parts)}",
                             budget_bytes=budget, need_bytes=need, parts=parts)


def _apart(one: int, other: int) -> tuple[str, str]:
    """Return two different sizes as different texts: in whole bytes, if they are equal when rounded."""
    texts = format_bytes(one), format_bytes(other)
    return texts if texts[0] != texts[1] else (f"{one} B", f"{other} B")


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)


def size_of(what: str, size: str | int) -> int:
    """Return a size in bytes, given as a number or as text such as "12GiB".
    Raises UserError unless it is a whole number above 0. what: the size's name, for the message."""
    nbytes = parse_bytes(size) if isinstance(size, str) else size
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes <= 0:
        raise UserError(f"{what} is a number of bytes or a size like '12GiB', not {size!r}")
    return nbytes


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
    """The floor of a step, its unmanaged peak, and predictions for budgets between these, as ``fit`` was asked."""

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
    floor, most = floor_of(seen, costs, limits), unmanaged(seen.staying(1.0))
    alone = max(seen.trace.seconds, 1e-12)
    points = []
    for share in shares:
        budget = floor.nbytes + round(share * (most - floor.nbytes))
        best = planner.best(seen, costs, replace(limits, device_bytes=budget))
        points.append(Point(budget, best.obeyed.peak_bytes, best.seconds / alone, best.share))
    return Fit(floor, most, tuple(points))
