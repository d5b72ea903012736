"""Plans by integer programming over stages, as published: ``checkmate``, ``str-ilp`` and ``mo-sos``.

    checkmate     keeps or recomputes each value, stage by stage (Jain et al., MLSys 2020)
    checkmate-lp  its linear relaxation, rounded
    str-ilp       also swaps: one copy out of each value, any number back (Wen et al., IPDPS 2022)
    mo-sos        also chooses the algorithm of each call, with its workspace (Wei et al., 2024)

In the first three, a call takes the fastest algorithm whose workspace is free. Each policy also tries the plans of
those above it and follows the fastest, so more choices never make it slower.

    blocks      cuts a trace that is too long into blocks of calls
    graph       the trace as nodes and values
    program     the integer program; transfers: its copies
    rounding    the relaxation, rounded in two phases
    schedule    the decisions, and their cost
    orders      a schedule as a plan
    residencies the addresses of the plan's tensors
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Proposal
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.policies.literature.ilp.graph import Graph, graph
from minidl.policies.literature.ilp.orders import named, to_plan
from minidl.policies.literature.ilp.residencies import placed
from minidl.policies.literature.ilp.schedule import StageSchedule, Verdict, judge
from minidl.policies.passive import Passive
from minidl.policies.recompute import Recompute

SECONDS = 60.0  # time limit of a solver for one program
MOST_NODES = 40  # a trace with more calls is cut into so many blocks
SHARE = 0.98    # share of the budget that is planned for if a trace is cut into blocks
GAP = 1e-6      # relative distance between a solution and the bound at which it counts as proven
BLOCKS_GAP = 1e-3  # the same if a trace is cut, because cutting loses more than that
SAME = 1e-6     # relative difference at which two durations count as equal


@dataclass(frozen=True)
class Solved:
    """A solver's result: the ``seconds`` that the program counts for its plan, and ``bound``, a proven lower bound.
    If the trace is cut into blocks, both count blocks."""

    seconds: float
    bound: float
    nodes: int
    blocks: bool

    @property
    def gap(self) -> float:
        """The distance between seconds and bound, as a share of the seconds."""
        return max(0.0, 1.0 - self.bound / self.seconds)

    def __str__(self) -> str:
        cut = f"{self.nodes} blocks of calls" if self.blocks else f"{self.nodes} calls"
        return f"{self.seconds:.4g} s over {cut}, gap {100 * self.gap:.2g}%"


@dataclass(frozen=True)
class SolvedSchedule:
    """A schedule, and the result of its solver; None if it came from no solver."""

    schedule: StageSchedule
    solved: Solved | None


class Checkmate(OnDemand):
    """Keeps or recomputes each value, by the integer program of Checkmate (Jain et al., MLSys 2020).
    seconds: the solver's time limit for one program, None: 60. most_nodes: a trace with more calls is cut into so many
    blocks of calls."""

    name = "checkmate"
    plans = True

    def __init__(self, *, seconds: float | None = None, most_nodes: int = MOST_NODES) -> None:
        self.seconds = SECONDS if seconds is None else seconds
        self.most_nodes = most_nodes

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return the victims that the policy ``recompute`` chooses."""
        return Recompute().victims(resident, pressure)

    def choices(self, stages: Graph, costs: Costs, budget: int) -> Iterator[SolvedSchedule]:
        """Yield the schedules to choose from; each fits if every call uses its smallest workspace."""
        from minidl.policies.literature.ilp.rounding import rounded  # SciPy: loaded when the first plan is made

        if (schedule := rounded(stages, budget, seconds=self.seconds)) is not None:
            yield SolvedSchedule(schedule, None)
        yield from self._solved(stages, costs, budget)

    def _solved(self, stages: Graph, costs: Costs, budget: int, *, copies: bool = False, chooses: bool = False,
                repeats: bool = True) -> Iterator[SolvedSchedule]:
        """Yield the best schedule that a solver finds for one program; nothing if it finds none in time.
        copies, chooses, repeats: whether the program may swap, choose algorithms, and replay."""
        from minidl.policies.literature.ilp.program import IntegerProgram
        from minidl.policies.literature.ilp.transfers import Transfers

        program = IntegerProgram(stages, budget, chooses=chooses, repeats=repeats)
        transfers = Transfers(program, costs) if copies else None
        program.build()
        solution = program.program.solve(seconds=self.seconds, gap=BLOCKS_GAP if stages.blocks else GAP)
        if solution.values is not None:
            schedule = program.read(solution)
            if transfers is not None:
                schedule = transfers.read(solution, schedule)
            found, bound = (program.surely + share * stages.seconds for share in (solution.objective, solution.bound))
            yield SolvedSchedule(schedule, Solved(found, bound, len(stages.nodes), stages.blocks))

    def enough(self, stages: Graph, budget: int) -> bool:
        """Return True if all values fit, so that there is nothing to decide."""
        return not judge(stages, keep_all(stages), budget).wrong

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the fastest choice that fits, with a remark on the solver's gap; no plan if all fits or none does."""
        stages = graph(trace, most=self.most_nodes)
        if self.enough(stages, limits.device_bytes):
            return NO_PLAN
        return fastest(stages, self.choices(stages, costs, planned_bytes(stages, limits)), costs, limits)


class CheckmateRounded(Checkmate):
    """Keeps or recomputes each value, by Checkmate's integer program relaxed to a linear one and rounded."""

    name = "checkmate-lp"

    def _solved(self, stages: Graph, costs: Costs, budget: int, *, copies: bool = False, chooses: bool = False,
                repeats: bool = True) -> Iterator[SolvedSchedule]:
        yield from ()


class SwapDominated(Checkmate):
    """STR: keeps, swaps or recomputes each value by an integer program; one copy out, any number of copies back."""

    name = "str-ilp"

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return the victims that the policy ``passive`` chooses."""
        return Passive().victims(resident, pressure)

    def choices(self, stages: Graph, costs: Costs, budget: int) -> Iterator[SolvedSchedule]:
        """Yield a schedule that only swaps, then Checkmate's, then one that swaps and recomputes."""
        yield from self._solved(stages, costs, budget, copies=True, repeats=False)
        yield from super().choices(stages, costs, budget)
        yield from self._solved(stages, costs, budget, copies=True)


class OperatorSelection(SwapDominated):
    """MO-SOS: one integer program decides keeping, swapping and recomputing, and the algorithm of each call."""

    name = "mo-sos"

    def enough(self, stages: Graph, budget: int) -> bool:
        """Return True if all values fit and every call can take its fastest algorithm."""
        verdict = judge(stages, keep_all(stages), budget)
        return not verdict.wrong and verdict.seconds <= stages.seconds * (1.0 + SAME)

    def choices(self, stages: Graph, costs: Costs, budget: int) -> Iterator[SolvedSchedule]:
        """Yield schedules: one that keeps all values, one that only swaps, STR's, Checkmate's, one with all choices.
        If no call has a choice of algorithms, STR's programs are the same, so the two with algorithms are left out."""
        choice = any(len(ways) > 1 for node in stages.nodes for ways in (node.ways, node.replay_ways))
        yield SolvedSchedule(keep_all(stages), None)
        if choice:
            yield from self._solved(stages, costs, budget, copies=True, chooses=True, repeats=False)
        yield from super().choices(stages, costs, budget)
        if choice:
            yield from self._solved(stages, costs, budget, copies=True, chooses=True)


def fastest(stages: Graph, choices: Iterable[SolvedSchedule], costs: Costs, limits: Limits) -> Proposal:
    """Return the plan of the fastest schedule that fits, with addresses and a remark on the gap, or no plan."""
    best: tuple[StageSchedule, Verdict] | None = None
    solved = None
    for choice in choices:
        verdict = judge(stages, choice.schedule, planned_bytes(stages, limits))
        solved = choice.solved or solved
        if not verdict.wrong and (best is None or verdict.seconds < best[1].seconds * (1.0 - SAME)):
            best = choice.schedule, verdict
            if verdict.seconds <= stages.seconds * (1.0 + SAME):
                break  # no schedule is faster than all calls once, each in its fastest way
    if best is None:
        return NO_PLAN
    schedule, verdict = best
    plan = to_plan(stages, schedule, verdict)
    ended = {stages.values[x].tensor_id: stages.nodes[copy.ended].span.first for x, copy in schedule.copies.items()}
    offsets = placed(stages.trace, plan, ended, named(verdict), costs, limits)
    return Proposal(replace(plan, offsets=offsets), remark=str(solved or "no solver proved anything in time"))


def planned_bytes(stages: Graph, limits: Limits) -> int:
    """Return the bytes that a schedule may use:
    the budget; if nodes are blocks, slightly less, so that all tensors find addresses."""
    return int(SHARE * limits.device_bytes) if stages.blocks else limits.device_bytes


def keep_all(stages: Graph) -> StageSchedule:
    """Return the schedule in which every value stays on the device."""
    there = tuple(frozenset(x for x, value in enumerate(stages.values) if value.decided and value.wanted(stage))
                  for stage in range(len(stages.nodes)))
    return StageSchedule(((),) * len(stages.nodes), there)
