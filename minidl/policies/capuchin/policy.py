"""Capuchin (Peng et al., ASPLOS 2020): a plan from one measured iteration, corrected by what the next ones show.

    choice        what is swapped out and what is dropped: ``planning.hybrid`` and ``planning.msps``.
    in-triggers   the latest access earlier than SwapInStart, later than the evicted-access and out of the peak that the
                  plan leaves. Swap-ins queue: from the last one backwards, each must have ended when the next starts.
                  Where there is no such access the back-access brings the tensor in.
    feedback      a tensor that is late has its SwapInStart moved earlier by 5% of its SwapTime.

Not in the paper: where a replay reads a swapped tensor, that is when it must be back. A swap-in that feedback has moved
moves those before it on the link. And a correction that makes an iteration far slower ends feedback, with the fastest
plan so far: a tensor that comes earlier takes memory that others may then wait for. Times are whole nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, AccessKey, Action, Plan
from minidl.plan.policy import Observation
from minidl.plan.trace import TensorId, Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.capuchin.hybrid import NANO, Choice
from minidl.policies.capuchin.timeline import NOWHERE, Profile
from minidl.policies.passive import Passive

FEEDBACK_SHARE = 0.05  # of its SwapTime, by which a late tensor's in-trigger moves
LATE_SECONDS = 1e-6  # less is not a delay but the clock's grain
SLOWER = 1.1  # than the fastest iteration so far: corrections have led astray


@dataclass(frozen=True)
class SwapIn:
    """One swap-in to be triggered: tensor, bytes, the call it is evicted after, the call that wants it, nanoseconds."""

    tensor_id: TensorId
    nbytes: int
    evict: int
    back: int
    time: int


@dataclass(frozen=True)
class CapuchinPlan(Plan):
    """A plan that can be corrected.

    swap_ins   in order of back-access.
    starts     per call: its start in nanoseconds, and the end of the last.
    triggers   per call: its last access.
    occupied   per call: bytes on the device with everything evicted and nothing prefetched.
    moved      tensor -> nanoseconds by which feedback has moved its SwapInStart earlier.
    stuck      tensors with no earlier in-trigger: they are evicted just before it, or there is no room.
    final      a correction has made it slower: there is no other one.
    """

    swap_ins: tuple[SwapIn, ...] = ()
    starts: tuple[int, ...] = ()
    triggers: tuple[AccessKey | None, ...] = ()
    occupied: tuple[int, ...] = ()
    budget_bytes: int = 0
    moved: Mapping[TensorId, int] = field(default_factory=dict)
    stuck: frozenset[TensorId] = frozenset()
    final: bool = False

    def placed(self) -> CapuchinPlan:
        """With in-triggers for the swap-ins as they are moved now."""
        wanted_starts = {}
        link_free = self.starts[-1]
        for swap in reversed(self.swap_ins):
            link_free = min(link_free, self.starts[swap.back]) - swap.time - self.moved.get(swap.tensor_id, 0)
            wanted_starts[swap.tensor_id] = link_free
        profile = Profile(self.occupied)
        prefetches: dict[AccessKey, list[TensorId]] = {}
        stuck = set()
        for swap in self.swap_ins:
            wanted = bisect_left(self.starts, wanted_starts[swap.tensor_id]) - 1
            full = profile.last_above(swap.evict + 1, swap.back - 1, self.budget_bytes - swap.nbytes)
            earliest = swap.evict + 1 if full == NOWHERE else full + 1
            if wanted <= earliest:
                stuck.add(swap.tensor_id)
            call = max(wanted, earliest)
            key = self.triggers[call] if call < swap.back else None
            if key is not None:
                prefetches.setdefault(key, []).append(swap.tensor_id)
                profile.add(call, swap.back - 1, swap.nbytes)
        return replace(self, prefetches={key: tuple(ids) for key, ids in prefetches.items()},
                       stuck=frozenset(stuck))


class Capuchin(Passive):
    """Swap what can be hidden, then the cheaper of swapping and recomputing.

    swap, recompute  which of the two may be used (the paper's breakdown turns one off).
    listing          Algorithm 1 as listed instead of the text of section 4.5.
    """

    name = "capuchin"
    plans = True

    def __init__(self, *, swap: bool = True, recompute: bool = True, listing: bool = False) -> None:
        self.swap = swap
        self.recompute = recompute
        self.listing = listing

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        """Raises nothing: what the plan cannot save is left to passive mode."""
        choice = Choice(Lifetimes.of(trace), costs, limits.device_bytes)
        if self.listing:
            choice.take_in_order(swap=self.swap, recompute=self.recompute)
        else:
            if self.swap:
                choice.swap_what_can_be_hidden()
            choice.take_cheapest_first(swap=self.swap, recompute=self.recompute)
        return EMPTY_PLAN if not choice.swapped and not choice.dropped else with_triggers(choice)

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        if not isinstance(plan, CapuchinPlan) or plan.final:
            return plan
        best = plan.best
        if isinstance(best, CapuchinPlan) and observed.seconds > SLOWER * plan.best_seconds:
            return replace(best, final=True)
        late = {tensor_id for tensor_id, seconds in observed.late.items() if seconds > LATE_SECONDS} - plan.stuck
        moved = {swap.tensor_id: plan.moved.get(swap.tensor_id, 0) + round(swap.time * FEEDBACK_SHARE)
                 for swap in plan.swap_ins if swap.tensor_id in late}
        if not moved:
            return plan
        corrected = replace(plan, moved={**plan.moved, **moved}).placed()
        if observed.seconds < plan.best_seconds:
            corrected = replace(corrected, best=replace(plan, best=None), best_seconds=observed.seconds)
        return corrected


class CapuchinSwap(Capuchin):
    """Swap only: when nothing more can be hidden, what is exposed least."""

    name = "capuchin-swap"

    def __init__(self, *, listing: bool = False) -> None:
        super().__init__(recompute=False, listing=listing)


class CapuchinRecompute(Capuchin):
    """Recompute only, by memory saved a second."""

    name = "capuchin-recompute"

    def __init__(self, *, listing: bool = False) -> None:
        super().__init__(swap=False, listing=listing)


def with_triggers(choice: Choice) -> CapuchinPlan:
    """The plan of a choice: its evictions, and in-triggers for what is swapped."""
    calls = len(choice.facts.trace.calls)
    wanted = choice.wanted_by_replays()
    swap_ins = []
    for swap in choice.swapped.values():
        back = wanted.get(swap.tensor_id, swap.back)
        choice.profile.add(back, swap.back - 1, swap.nbytes)
        swap_ins.append(SwapIn(swap.tensor_id, swap.nbytes, swap.evict, back, swap.swap_in))
    triggers: list[AccessKey | None] = [None] * calls
    for access in choice.facts.trace.accesses:
        triggers[access.call] = (access.tensor_id, access.access_count)
    return CapuchinPlan(
        evictions={(c.tensor_id, c.count): action
                   for action, chosen in ((Action.SWAP_OUT, choice.swapped), (Action.DROP, choice.dropped))
                   for c in chosen.values()},
        predicted_seconds=(choice.starts[-1] + choice.overhead) / NANO,
        swap_ins=tuple(sorted(swap_ins, key=lambda s: (s.back, s.tensor_id))),
        starts=tuple(choice.starts), triggers=tuple(triggers), occupied=tuple(choice.profile.values(calls)),
        budget_bytes=choice.budget_bytes).placed()
