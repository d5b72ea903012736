"""Exact and relaxed plans by integer programming over stages, as published: ``checkmate``, ``str-ilp`` and ``mo-sos``.

    checkmate     what is kept from stage to stage, the rest made again (Jain et al., MLSys 2020)
    checkmate-lp  its linear relaxation, rounded
    str           and copies: one out of each value, any number back (Wen et al., IPDPS 2022)
    mo-sos        and the algorithm of each call, with its workspace (Wei et al., 2024)

The first three leave the algorithm to what is free when a call runs ("Auto"). Each of them knows the plans of those
above it and follows the fastest, so none is slower by what it may choose beside.

    blocks      a trace that is too long is cut into blocks of calls
    graph       the trace as nodes and values
    program     the integer program; transfers: its copies
    rounding    the relaxation in two phases
    schedule    what was decided, and what it comes to
    orders      that as a plan
    residencies and where its tensors lie
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Proposal
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.policies.literature.ilp.graph import Graph, graph
from minidl.policies.literature.ilp.orders import named, to_plan
from minidl.policies.literature.ilp.residencies import placed
from minidl.policies.literature.ilp.schedule import Schedule, Verdict, judge
from minidl.policies.passive import Passive
from minidl.policies.recompute import Recompute

SECONDS = 60.0  # that a solver may take for one program
MOST_NODES = 40  # of a trace; a longer one is cut into so many blocks
SHARE = 0.98    # of the budget that is planned for, where a trace is cut
GAP = 1e-6      # relative distance between a solution and the bound at which it counts as proven
BLOCKS_GAP = 1e-3  # the same where a trace is cut, which loses more than that
SAME = 1e-6     # relative difference of two durations that means nothing


@dataclass(frozen=True)
class Solved:
    """How far a solver came: seconds of the plan, as counted in its own program; none takes less than ``bound``. With
    blocks it is the optimum of the blocks, not of the trace."""

    seconds: float
    bound: float
    nodes: int
    blocks: bool

    @property
    def gap(self) -> float:
        """The gap between the two, as a share of the plan's seconds."""
        return max(0.0, 1.0 - self.bound / self.seconds)

    def __str__(self) -> str:
        cut = f"{self.nodes} blocks of calls" if self.blocks else f"{self.nodes} calls"
        return f"{self.seconds:.4g} s over {cut}, gap {100 * self.gap:.2g}%"


@dataclass(frozen=True)
class Choice:
    """A schedule, and how far its solver came (None: there was none)."""

    schedule: Schedule
    solved: Solved | None


class Checkmate(OnDemand):
    """Rematerialization as a mixed-integer program."""

    name = "checkmate"
    plans = True

    def __init__(self, *, seconds: float | None = None, most_nodes: int = MOST_NODES) -> None:
        self.seconds = SECONDS if seconds is None else seconds
        self.most_nodes = most_nodes

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """The victims of ``recompute``."""
        return Recompute().victims(resident, pressure)

    def choices(self, stages: Graph, costs: Costs, budget: int) -> Iterator[Choice]:
        """The possible choices; each fits if every algorithm uses its smallest workspace."""
        from minidl.policies.literature.ilp.rounding import rounded  # SciPy: loaded when the first plan is made

        if (schedule := rounded(stages, budget, seconds=self.seconds)) is not None:
            yield Choice(schedule, None)
        yield from self._solved(stages, costs, budget)

    def _solved(self, stages: Graph, costs: Costs, budget: int, *, copies: bool = False, chooses: bool = False,
                repeats: bool = True) -> Iterator[Choice]:
        """The best of one program, if any was found in time."""
        from minidl.policies.literature.ilp.program import Program
        from minidl.policies.literature.ilp.transfers import Transfers

        program = Program(stages, budget, chooses=chooses, repeats=repeats)
        transfers = Transfers(program, costs) if copies else None
        program.build()
        solution = program.program.solve(seconds=self.seconds, gap=BLOCKS_GAP if stages.blocks else GAP)
        if solution.values is not None:
            schedule = program.read(solution)
            if transfers is not None:
                schedule = transfers.read(solution, schedule)
            found, bound = (program.surely + share * stages.seconds for share in (solution.objective, solution.bound))
            yield Choice(schedule, Solved(found, bound, len(stages.nodes), stages.blocks))

    def enough(self, stages: Graph, budget: int) -> bool:
        """True if all fits, so that there is nothing to decide."""
        return not judge(stages, keep_all(stages), budget).wrong

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """The fastest choice that fits, remarking how far the solver came; no plan if all fits, or if none does.
        """
        stages = graph(trace, most=self.most_nodes)
        if self.enough(stages, limits.device_bytes):
            return NO_PLAN
        return fastest(stages, self.choices(stages, costs, to_plan_for(stages, limits)), costs, limits)


class CheckmateRounded(Checkmate):
    """The linear relaxation of Checkmate's program, rounded."""

    name = "checkmate-lp"

    def _solved(self, stages: Graph, costs: Costs, budget: int, *, copies: bool = False, chooses: bool = False,
                repeats: bool = True) -> Iterator[Choice]:
        yield from ()


class SwapDominated(Checkmate):
    """STR: keep, swap or make again; one copy out, many back."""

    name = "str-ilp"

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """The victims of ``passive``."""
        return Passive().victims(resident, pressure)

    def choices(self, stages: Graph, costs: Costs, budget: int) -> Iterator[Choice]:
        """Its own without anything made again, Checkmate's, and its own."""
        yield from self._solved(stages, costs, budget, copies=True, repeats=False)
        yield from super().choices(stages, costs, budget)
        yield from self._solved(stages, costs, budget, copies=True)


class OperatorSelection(SwapDominated):
    """MO-SOS: which algorithm each call takes is decided with all the rest."""

    name = "mo-sos"

    def enough(self, stages: Graph, budget: int) -> bool:
        """True if all fits, and every call may take its fastest algorithm."""
        verdict = judge(stages, keep_all(stages), budget)
        return not verdict.wrong and verdict.seconds <= stages.seconds * (1.0 + SAME)

    def choices(self, stages: Graph, costs: Costs, budget: int) -> Iterator[Choice]:
        """Keeping all, its own without anything made again, those of STR and Checkmate, and its own; where no call has
        a choice of algorithms these are the same programs."""
        choice = any(len(ways) > 1 for node in stages.nodes for ways in (node.ways, node.replay_ways))
        yield Choice(keep_all(stages), None)
        if choice:
            yield from self._solved(stages, costs, budget, copies=True, chooses=True, repeats=False)
        yield from super().choices(stages, costs, budget)
        if choice:
            yield from self._solved(stages, costs, budget, copies=True, chooses=True)


def fastest(stages: Graph, choices: Iterable[Choice], costs: Costs, limits: Limits) -> Proposal:
    """The plan of the fastest choice that fits, with addresses, and how far the last solver came."""
    best: tuple[Schedule, Verdict] | None = None
    solved = None
    for choice in choices:
        verdict = judge(stages, choice.schedule, to_plan_for(stages, limits))
        solved = choice.solved or solved
        if not verdict.wrong and (best is None or verdict.seconds < best[1].seconds * (1.0 - SAME)):
            best = choice.schedule, verdict
            if verdict.seconds <= stages.seconds * (1.0 + SAME):
                break  # none is faster than all calls once, each in its fastest way
    if best is None:
        return NO_PLAN
    schedule, verdict = best
    plan = to_plan(stages, schedule, verdict)
    ended = {stages.values[x].tensor_id: stages.nodes[copy.ended].span.first for x, copy in schedule.copies.items()}
    offsets = placed(stages.trace, plan, ended, named(verdict), costs, limits)
    return Proposal(replace(plan, offsets=offsets), remark=str(solved or "no solver proved anything in time"))


def to_plan_for(stages: Graph, limits: Limits) -> int:
    """The bytes that schedules may take: of a long trace somewhat less than there are, so that all finds an address."""
    return int(SHARE * limits.device_bytes) if stages.blocks else limits.device_bytes


def keep_all(stages: Graph) -> Schedule:
    """Nothing leaves."""
    there = tuple(frozenset(x for x, value in enumerate(stages.values) if value.decided and value.wanted(stage))
                  for stage in range(len(stages.nodes)))
    return Schedule(((),) * len(stages.nodes), there)
