"""Capuchin (Peng et al., ASPLOS 2020): a plan from one measured iteration, corrected by feedback from the next ones.

    hybrid, msps   choose the tensors to swap out and to drop
    triggers       chooses the in-trigger of each swap-in
    feedback       moves the SwapInStart of a late tensor earlier by 5% of its SwapTime

Not in the paper: a tensor that arrives earlier takes memory that others may then wait for. So feedback ends with the
fastest plan so far if a correction makes the iteration far slower, or several in a row make it no faster. A plan whose
iterations are far slower than the measured one, which ran in passive mode, is given up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Plan, Proposal, SavedProposal
from minidl.plan.policy import Observation
from minidl.plan.trace import TensorId, Trace
from minidl.planning.expansion import expand
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.modes import modes_of
from minidl.planning.problem import problem
from minidl.planning.schedule import NO_NOTES
from minidl.policies.capuchin.hybrid import NANO, EvictionPlanner
from minidl.policies.capuchin.listing import Listing
from minidl.policies.capuchin.readings import DEFAULT, Readings
from minidl.policies.capuchin.triggers import Timetable
from minidl.policies.passive import Passive

FEEDBACK_SHARE = 0.05  # share of its SwapTime by which a late tensor's in-trigger moves
LATE_SECONDS = 1e-6  # shorter delays are the clock's resolution
SLOWER = 1.1  # times the fastest iteration: a correction this much slower ends feedback
NO_FASTER = 1.001  # times the fastest iteration: longer iterations count as slower
PATIENCE = 5  # so many slower iterations in a row end feedback


@dataclass(frozen=True)
class Corrections:
    """The notes that ``capuchin`` keeps beside a plan.

    timetable     the facts that determine in-triggers; the same for all corrections
    stuck         tensors whose swap-in cannot start earlier
    moved         tensor -> nanoseconds by which feedback has moved its SwapInStart earlier
    best          the fastest plan so far
    best_seconds  the seconds of its iteration
    slower        number of iterations in a row that were slower than that
    final         True if feedback has ended
    passive_seconds   of the measured iteration, without a plan
    """

    timetable: Timetable
    stuck: frozenset[TensorId]
    moved: Mapping[TensorId, int] = field(default_factory=dict)
    best: Proposal | None = None
    best_seconds: float = inf
    slower: int = 0
    final: bool = False
    passive_seconds: float = inf


class Capuchin(Passive):
    """Swaps tensors whose copies are hidden, then takes the cheaper of swapping and recomputing, tensor by tensor.

    swap, recompute  False turns one of the two off (the paper's breakdown).
    readings         switches for passages of the paper that can be read in several ways.
    """

    name = "capuchin"
    plans = True

    def __init__(self, *, swap: bool = True, recompute: bool = True, readings: Readings = DEFAULT) -> None:
        self.swap = swap
        self.recompute = recompute
        self.readings = readings

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return a plan, or no plan if no eviction helps.
        If it saves too few bytes, passive mode evicts the rest while the program runs."""
        choice = self.choose(Lifetimes.of(trace), costs, limits)
        return NO_PLAN if not choice.swapped and not choice.dropped else _proposal(choice, trace, costs, limits)

    def choose(self, facts: Lifetimes, costs: Costs, limits: Limits) -> EvictionPlanner:
        """Return the planner after its last decision."""
        choice = EvictionPlanner(facts, costs, limits.device_bytes, self.readings, host_bytes=limits.host_bytes)
        if self.readings.listing:
            choice.take_in_order(swap=self.swap, recompute=self.recompute)
        else:
            if self.swap:
                choice.swap_what_can_be_hidden()
            choice.take_cheapest_first(swap=self.swap, recompute=self.recompute)
        return choice

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """Return the plan with earlier in-triggers for late tensors.
        Once that no longer helps, return the fastest plan; if passive mode is far faster, no plan."""
        notes: Corrections | None = proposal.notes
        if notes is None or notes.final:
            return proposal
        if observed.seconds > SLOWER * notes.passive_seconds and notes.best_seconds > SLOWER * notes.passive_seconds:
            return NO_PLAN
        slower = notes.slower + 1 if observed.seconds > NO_FASTER * notes.best_seconds else 0
        late = {tensor_id for tensor_id, seconds in observed.late.items() if seconds > LATE_SECONDS} - notes.stuck
        moved = {swap.tensor_id: notes.moved.get(swap.tensor_id, 0) + round(swap.time * FEEDBACK_SHARE)
                 for swap in notes.timetable.swap_ins if swap.tensor_id in late}
        if notes.best is not None and slower and (
                not moved or slower == PATIENCE or observed.seconds > SLOWER * notes.best_seconds):
            return replace(notes.best, notes=replace(notes.best.notes, final=True))
        if not moved:
            return proposal
        moved = {**notes.moved, **moved}
        placed = notes.timetable.placed(moved)
        corrected = replace(notes, stuck=placed.stuck, moved=moved, slower=slower)
        if observed.seconds < notes.best_seconds:
            best = replace(proposal, notes=replace(notes, best=None))
            corrected = replace(corrected, best=best, best_seconds=observed.seconds)
        return Proposal(replace(proposal.plan, prefetches=placed.prefetches), corrected)

    def keep(self, proposal: Proposal) -> SavedProposal:
        """Return the fastest plan so far; a resumed run does not correct it."""
        notes: Corrections | None = proposal.notes
        best = notes.best if notes is not None else None
        return SavedProposal(proposal.plan if best is None else best.plan)


class CapuchinSwap(Capuchin):
    """Capuchin without recomputation: swaps tensors whose copies are hidden, then those with the least exposed time."""

    name = "capuchin-swap"

    def __init__(self, *, readings: Readings = DEFAULT) -> None:
        super().__init__(recompute=False, readings=readings)


class CapuchinRecompute(Capuchin):
    """Capuchin without swapping: recomputes the tensors with the largest memory saving per second (MSPS)."""

    name = "capuchin-recompute"

    def __init__(self, *, readings: Readings = DEFAULT) -> None:
        super().__init__(swap=False, readings=readings)


class CapuchinListing(Passive):
    """Algorithm 1 as printed, for comparison, without feedback; passive mode evicts what the plan does not."""

    name = "capuchin-listing"
    plans = True

    def __init__(self, *, counted: bool = False) -> None:
        """counted: True counts in ext_time all choices that start from a tensor, False only the last, as printed."""
        self.counted = counted

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the plan of the printed Algorithm 1."""
        made = Listing(trace, costs, limits.device_bytes, counted=self.counted)
        made.algorithm_1()
        last = {access.call: (access.tensor_id, access.access_count) for access in trace.accesses}
        prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
        for t in sorted(made.swaps, key=lambda t: (t.back, t.id)):
            if t.in_trigger < t.back:
                prefetches[last[t.in_trigger]] = (*prefetches.get(last[t.in_trigger], ()), t.id)
        evictions = {(t.id, t.count): action for action, chosen in
                     ((Action.SWAP_OUT, made.swaps), (Action.DROP, made.recomps)) for t in chosen}
        return Proposal(Plan(evictions, prefetches))


def _proposal(choice: EvictionPlanner, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
    """Return the proposal of the planner's choices: its evictions, and an in-trigger for each swap."""
    timetable = Timetable.of(choice)
    placed = timetable.placed({})
    plan = Plan(choice.evictions(), placed.prefetches)
    replayed = None if choice.over_budget else _replay_seconds(plan, trace, costs, limits)
    if replayed is not None:
        plan = replace(plan, predicted_seconds=(int(choice.starts[-1]) + choice.exposed) / NANO + replayed)
    passive = inf if trace.observed_seconds is None else trace.observed_seconds
    return Proposal(plan, Corrections(timetable, placed.stuck, passive_seconds=passive))


def _replay_seconds(plan: Plan, trace: Trace, costs: Costs, limits: Limits) -> float | None:
    """Return the seconds of a plan's replays; None if a step exceeds the budget, so that more leaves on demand.
    The paper's ext_time says what one more decision adds, so the sum over decisions counts shared calls repeatedly."""
    facts = problem(trace, costs, lasting=False)
    mode = modes_of(plan, facts)
    steps, _, _, total = expand(facts, mode, np.full(len(mode), -1, np.int64), NO_NOTES)
    fits = total.failed < 0 and steps.during.max(initial=0) <= limits.device_bytes
    return float(total.replay_seconds) if fits else None
