"""Capuchin (Peng et al., ASPLOS 2020): a plan from one measured iteration, corrected by what the next ones show.

Section 4.5 and Algorithm 1, as carried out here:

    candidates    tensors whose gap between two consecutive accesses meets the peak: the calls during which live bytes,
                  less what the plan saves already, exceed the budget. Of several gaps the one of most free time,
                  FT = (back-access - SwapTime in) - (evicted-access + SwapTime out).
    swap          by FT, longest first, what both directions of the link can hide, until the peak is gone.
    hybrid        then, again and again, the swap with the least exposed time against the recomputation with the most
                  memory saved a second; the cheaper one is taken, the other goes back. (``listing``: each candidate,
                  by FT, in the cheaper way, as Algorithm 1 has it.)
    in-triggers   the latest access earlier than SwapInStart, later than the evicted-access and out of the peak that the
                  plan leaves. Swap-ins queue: from the last one backwards, each must have ended when the next starts.
                  Where there is no such access the back-access brings the tensor in.
    feedback      a tensor that is late has its SwapInStart moved earlier by 5% of its SwapTime.

Not in the paper: persistent tensors stay; where a replay reads a swapped tensor, that is when it must be back. Times
are whole nanoseconds, so that a sum does not depend on its order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from minidl.memory.lifetimes import BEFORE, Lifetimes
from minidl.memory.msps import Candidate, Recomputation, lineage
from minidl.memory.plan import AccessKey, Action, Costs, Limits, Observation, Plan
from minidl.memory.policies.passive import Passive
from minidl.memory.room import NOWHERE, Link, Profile
from minidl.memory.trace import TensorId, Trace

NANO = 1_000_000_000
FEEDBACK_SHARE = 0.05  # of its SwapTime, by which a late tensor's in-trigger moves
LATE_SECONDS = 1e-6  # less is not a delay but the clock's grain


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
    """

    swap_ins: tuple[SwapIn, ...] = ()
    starts: Sequence[int] = ()
    triggers: Sequence[AccessKey | None] = ()
    occupied: Sequence[int] = ()
    budget_bytes: int = 0
    moved: Mapping[TensorId, int] = field(default_factory=dict)
    stuck: frozenset[TensorId] = frozenset()  # no earlier in-trigger is possible: evicted just before, or no room

    def placed(self) -> CapuchinPlan:
        """With in-triggers for the swap-ins as they are moved now."""
        wanted_starts = {}
        link_free = self.starts[-1]
        for swap in reversed(self.swap_ins):
            link_free = min(link_free, self.starts[swap.back]) - swap.time
            wanted_starts[swap.tensor_id] = link_free - self.moved.get(swap.tensor_id, 0)
        profile = Profile(self.occupied)
        prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
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
                prefetches[key] = (*prefetches.get(key, ()), swap.tensor_id)
                profile.add(call, swap.back - 1, swap.nbytes)
        return replace(self, prefetches=prefetches, stuck=frozenset(stuck))


class Capuchin(Passive):
    """Swap what can be hidden, then the cheaper of swapping and recomputing.

    swap, recompute  which of the two may be used (the paper's breakdown turns one off).
    listing          Algorithm 1 as listed instead of the text of section 4.5.
    feedback         correct in-triggers by what was late.
    static_times     plan with one duration for all calls of a kind of operation, their mean, as systems do that go by
                     layer types; the sum over the iteration stays the measured one.
    """

    name = "capuchin"
    plans = True

    def __init__(self, *, swap: bool = True, recompute: bool = True, listing: bool = False, feedback: bool = True,
                 static_times: bool = False) -> None:
        self.swap = swap
        self.recompute = recompute
        self.listing = listing
        self.corrects = feedback
        self.static_times = static_times

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        """Raises nothing: what the plan cannot save is left to passive mode."""
        facts = Lifetimes.of(with_static_times(trace) if self.static_times else trace)
        choice = Choice(facts, costs, limits.device_bytes)
        if self.swap:
            choice.swap_what_can_be_hidden()
        if choice.over_budget and self.recompute:
            choice.consider_recomputation()
        if self.listing:
            choice.in_order(swap=self.swap)
        else:
            choice.cheapest_first(swap=self.swap)
        return choice.as_plan()

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        if not self.corrects or not isinstance(plan, CapuchinPlan):
            return plan
        late = {tensor_id for tensor_id, seconds in observed.late.items() if seconds > LATE_SECONDS} - plan.stuck
        moved = {swap.tensor_id: plan.moved.get(swap.tensor_id, 0) + round(swap.time * FEEDBACK_SHARE)
                 for swap in plan.swap_ins if swap.tensor_id in late}
        return replace(plan, moved={**plan.moved, **moved}).placed() if moved else plan


class CapuchinSwap(Capuchin):
    """Swap only: when nothing more can be hidden, what is exposed least."""

    name = "capuchin-swap"

    def __init__(self, *, listing: bool = False, feedback: bool = True, static_times: bool = False) -> None:
        super().__init__(recompute=False, listing=listing, feedback=feedback, static_times=static_times)


class CapuchinRecompute(Capuchin):
    """Recompute only, by memory saved a second."""

    name = "capuchin-recompute"

    def __init__(self, *, listing: bool = False, static_times: bool = False) -> None:
        super().__init__(swap=False, listing=listing, static_times=static_times)


def with_static_times(trace: Trace) -> Trace:
    """The same trace with every call's duration the mean of its kind's."""
    total: dict[str, float] = {}
    count: dict[str, int] = {}
    for call in trace.calls:
        total[call.op] = total.get(call.op, 0.0) + call.seconds
        count[call.op] = count.get(call.op, 0) + 1
    return Trace(tuple(replace(call, seconds=total[call.op] / count[call.op]) for call in trace.calls), trace.tensors)


class Choice:
    """What is evicted, chosen step by step."""

    def __init__(self, facts: Lifetimes, costs: Costs, budget_bytes: int) -> None:
        self.facts = facts
        self.budget_bytes = budget_bytes
        self.starts = [round(start * NANO) for start in facts.start_s]
        self.profile = Profile(facts.live_bytes)
        self.link_out, self.link_in = Link(self.starts), Link(self.starts)
        self.swapped: dict[TensorId, Candidate] = {}
        self.dropped: dict[TensorId, Candidate] = {}
        self.exposed = 0
        self.recomputation: Recomputation | None = None
        self.candidates = {c.tensor_id: c for c in self._candidates(costs)}  # by FT, longest first

    def _candidates(self, costs: Costs) -> list[Candidate]:
        found = []
        for tensor_id, calls in self.facts.uses.items():
            if len(calls) < 2 or self.facts.trace.tensors[tensor_id].persistent:
                continue
            nbytes = self.facts.nbytes[tensor_id]
            out = round((costs.latency_seconds + nbytes * costs.out_seconds_per_byte) * NANO)
            back_in = round((costs.latency_seconds + nbytes * costs.in_seconds_per_byte) * NANO)
            best: Candidate | None = None
            for count, (evict, back) in enumerate(zip(calls, calls[1:], strict=False), 1):
                free_time = self.starts[back] - back_in - self.starts[evict] - out
                if (best is None or free_time > best.free_time) and self._saves(evict, back):
                    best = Candidate(tensor_id, nbytes, evict, back, count, free_time, back_in, out)
            if best is not None:
                found.append(best)
        return sorted(found, key=lambda c: (-c.free_time, c.tensor_id))

    @property
    def over_budget(self) -> bool:
        """Whether there still is a peak."""
        return self.profile.peak() > self.budget_bytes

    def _saves(self, evict: int, back: int) -> bool:
        return self.profile.exceeds(evict + 1, back - 1, self.budget_bytes)

    def helps(self, candidate: Candidate) -> bool:
        """Whether evicting it would lower what is left of the peak."""
        return self._saves(candidate.evict, candidate.back)

    def swap_overhead(self, candidate: Candidate) -> int:
        """Nanoseconds of its swap-in that neither computation nor a gap between transfers hides."""
        landed = self.link_out.out_end(candidate.evict, candidate.swap_out)
        return max(0, candidate.swap_in - self.link_in.left_in(landed, candidate.back))

    def is_away(self, tensor_id: TensorId, call: int) -> bool:
        """Whether a tensor that was chosen is off the device, and not yet on its way back, when a call starts."""
        if tensor_id in self.dropped:
            return self.dropped[tensor_id].evict < call < self.dropped[tensor_id].back
        swapped = self.swapped.get(tensor_id)
        return (swapped is not None and swapped.evict < call
                and self.starts[call] < self.starts[swapped.back] - swapped.swap_in)

    # Steps ---------------------------------------------------------------------------------------------------
    def swap_what_can_be_hidden(self) -> None:
        """Candidates by FT, as long as there is a peak: those whose transfers find the link free in time."""
        for candidate in list(self.candidates.values()):
            if not self.over_budget:
                return
            if candidate.free_time >= 0 and self.helps(candidate) and not self.swap_overhead(candidate):
                self.take_swap(candidate)

    def consider_recomputation(self) -> None:
        """From here on every candidate may also be recomputed."""
        self.recomputation = Recomputation(self.facts, lambda k: self.starts[k + 1] - self.starts[k],
                                           self.candidates.values(), self.is_away)

    def cheapest_first(self, *, swap: bool) -> None:
        """The text of section 4.5: best swap against best recomputation, the cheaper one first."""
        # A swap's overhead only grows as others use the link, so the front of the heap needs no more than a fresh look.
        by_overhead = [(self.swap_overhead(c), n, c) for n, c in enumerate(self.candidates.values())] if swap else []
        heapq.heapify(by_overhead)
        while self.over_budget:
            cheapest = None
            while by_overhead and cheapest is None:
                overhead, n, candidate = by_overhead[0]
                if candidate.tensor_id not in self.candidates or not self.helps(candidate):
                    heapq.heappop(by_overhead)
                elif (now := self.swap_overhead(candidate)) != overhead:
                    heapq.heapreplace(by_overhead, (now, n, candidate))
                else:
                    cheapest = candidate
            drop = self.recomputation.best(self.helps) if self.recomputation is not None else None
            if cheapest is None and drop is None:
                return
            if drop is None or (cheapest is not None and by_overhead[0][0] < (drop.overhead or 0)):
                assert cheapest is not None
                self.take_swap(cheapest)
            else:
                self.take_drop(drop)

    def in_order(self, *, swap: bool) -> None:
        """Algorithm 1 as listed: candidates by FT, each in the way that costs less."""
        for candidate in list(self.candidates.values()):
            if not self.over_budget:
                return
            if not self.helps(candidate):
                continue
            recompute = candidate.overhead
            if swap and (recompute is None or self.swap_overhead(candidate) < recompute):
                self.take_swap(candidate)
            elif recompute is not None:
                self.take_drop(candidate)

    def take_swap(self, candidate: Candidate) -> None:
        """Swap this candidate out after its evicted-access."""
        landed = self.link_out.out_end(candidate.evict, candidate.swap_out)
        self.exposed += self.swap_overhead(candidate)
        self.link_out.take_out(candidate.evict, candidate.swap_out)
        self.link_in.take_in(landed, candidate.back, candidate.swap_in)
        self.swapped[candidate.tensor_id] = candidate
        if self.recomputation is not None:
            self.recomputation.swap(candidate, lambda call: self.is_away(candidate.tensor_id, call))
        self._taken(candidate)

    def take_drop(self, candidate: Candidate) -> None:
        """Drop this candidate after its evicted-access, to be recomputed."""
        assert self.recomputation is not None
        self.exposed += candidate.rp_time or 0
        self.dropped[candidate.tensor_id] = candidate
        self.recomputation.recompute(candidate)
        self._taken(candidate)

    def _taken(self, candidate: Candidate) -> None:
        del self.candidates[candidate.tensor_id]
        self.profile.add(candidate.evict + 1, candidate.back - 1, -candidate.nbytes)

    # Result --------------------------------------------------------------------------------------------------
    def wanted_by_replays(self) -> dict[TensorId, int]:
        """Swapped tensor -> the first call whose replays read it, where that is before its back-access."""
        wanted: dict[TensorId, int] = {}
        for drop in self.dropped.values():
            found = lineage(self.facts, drop, lambda t, call: t in self.dropped and self.is_away(t, call))
            for source in found[1] if found is not None else ():
                swap = self.swapped.get(source)
                if swap is not None and swap.evict < drop.back < swap.back:
                    wanted[source] = min(wanted.get(source, swap.back), drop.back)
        return wanted

    def as_plan(self) -> Plan:
        """The evictions, with in-triggers for what is swapped."""
        if not self.swapped and not self.dropped:
            return Plan()
        wanted = self.wanted_by_replays()
        swap_ins = []
        for swap in self.swapped.values():
            back = wanted.get(swap.tensor_id, swap.back)
            self.profile.add(back, swap.back - 1, swap.nbytes)
            swap_ins.append(SwapIn(swap.tensor_id, swap.nbytes, swap.evict, back, swap.swap_in))
        evictions = {(c.tensor_id, c.count): Action.SWAP_OUT for c in self.swapped.values()}
        evictions |= {(c.tensor_id, c.count): Action.DROP for c in self.dropped.values()}
        calls = len(self.facts.trace.calls)
        triggers: list[AccessKey | None] = [None] * calls
        for access in self.facts.trace.accesses:
            triggers[access.call] = (access.tensor_id, access.access_count)
        seconds = (self.starts[-1] + self.exposed) / NANO
        return CapuchinPlan(evictions, {}, seconds, tuple(sorted(swap_ins, key=lambda s: (s.back, s.tensor_id))),
                            self.starts, triggers, self.profile.values(calls), self.budget_bytes).placed()
