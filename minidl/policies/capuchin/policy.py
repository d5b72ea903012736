"""Capuchin (Peng et al., ASPLOS 2020): a plan from one measured iteration, corrected by what the next ones show.

    hybrid, msps   what is swapped out and what is dropped; ``live_bytes`` and ``link_time`` are what that uses up.
    triggers       when each swap-in is started.
    feedback       a tensor that is late has its SwapInStart moved earlier by 5% of its SwapTime.

Not in the paper: a correction that makes an iteration far slower, or several in a row that make it no faster, end
feedback with the fastest plan so far, for a tensor that comes earlier takes memory that others may then wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Plan, Proposal, SavedProposal
from minidl.plan.policy import Observation
from minidl.plan.trace import TensorId, Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.capuchin.hybrid import NANO, Choice
from minidl.policies.capuchin.listing import Listing
from minidl.policies.capuchin.readings import DEFAULT, Readings
from minidl.policies.capuchin.triggers import Timetable
from minidl.policies.passive import Passive

FEEDBACK_SHARE = 0.05  # of its SwapTime, by which a late tensor's in-trigger moves
LATE_SECONDS = 1e-6  # less is not a delay but the clock's grain
SLOWER = 1.1  # than the fastest iteration so far: corrections have led astray
NO_FASTER = 1.001  # than it: not a gain, and not the clock's grain either
PATIENCE = 5  # iterations in a row that may be slower


@dataclass(frozen=True)
class Corrections:
    """The notes of ``capuchin`` beside a plan.

    timetable  the facts that determine in-triggers; the same for all corrections.
    stuck      tensors that cannot start earlier.
    moved      tensor -> nanoseconds by which feedback has moved its SwapInStart earlier.
    best       the proposal that was fastest when it was tried, and best_seconds what it took.
    slower     how many iterations in a row have been slower than that.
    final      corrections have made it slower: there is no other one.
    """

    timetable: Timetable
    stuck: frozenset[TensorId]
    moved: Mapping[TensorId, int] = field(default_factory=dict)
    best: Proposal | None = None
    best_seconds: float = inf
    slower: int = 0
    final: bool = False


class Capuchin(Passive):
    """Swap what can be hidden, then the cheaper of swapping and recomputing.

    swap, recompute  which of the two may be used (the paper's breakdown turns one off).
    readings         how the paper is read where it can be read in several ways.
    """

    name = "capuchin"
    plans = True

    def __init__(self, *, swap: bool = True, recompute: bool = True, readings: Readings = DEFAULT) -> None:
        self.swap = swap
        self.recompute = recompute
        self.readings = readings

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Raises nothing: what the plan cannot save is left to passive mode."""
        choice = Choice(Lifetimes.of(trace), costs, limits.device_bytes, self.readings)
        if self.readings.listing:
            choice.take_in_order(swap=self.swap, recompute=self.recompute)
        else:
            if self.swap:
                choice.swap_what_can_be_hidden()
            choice.take_cheapest_first(swap=self.swap, recompute=self.recompute)
        return NO_PLAN if not choice.swapped and not choice.dropped else _proposal(choice)

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """In-triggers of what was late, moved earlier; the fastest plan, for good, if that no longer helps."""
        notes: Corrections | None = proposal.notes
        if notes is None or notes.final:
            return proposal
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
        """The fastest plan so far. A later run does not correct it any more."""
        notes: Corrections | None = proposal.notes
        best = notes.best if notes is not None else None
        return SavedProposal(proposal.plan if best is None else best.plan)


class CapuchinSwap(Capuchin):
    """Swap only: when nothing more can be hidden, what is exposed least."""

    name = "capuchin-swap"

    def __init__(self, *, readings: Readings = DEFAULT) -> None:
        super().__init__(recompute=False, readings=readings)


class CapuchinRecompute(Capuchin):
    """Recompute only, by memory saved a second."""

    name = "capuchin-recompute"

    def __init__(self, *, readings: Readings = DEFAULT) -> None:
        super().__init__(swap=False, readings=readings)


class CapuchinListing(Passive):
    """Algorithm 1 as printed, to compare with. Its plan is not corrected; what it does not save is left to passive
    mode."""

    name = "capuchin-listing"
    plans = True

    def __init__(self, *, counted: bool = False) -> None:
        """counted: ext_time counts all choices, not only the last."""
        self.counted = counted

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Raises nothing."""
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


def _proposal(choice: Choice) -> Proposal:
    """A choice's evictions, with in-triggers for what is swapped."""
    timetable = Timetable.of(choice)
    placed = timetable.placed({})
    evictions = {(c.tensor_id, c.count): action
                 for action, chosen in ((Action.SWAP_OUT, choice.swapped), (Action.DROP, choice.dropped))
                 for c in chosen.values()}
    plan = Plan(evictions, placed.prefetches, predicted_seconds=(int(choice.starts[-1]) + choice.overhead) / NANO)
    return Proposal(plan, Corrections(timetable, placed.stuck))
