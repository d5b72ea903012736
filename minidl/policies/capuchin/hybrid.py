"""What to evict, and how: Capuchin's hybrid of swapping and recomputing (section 4.5, Algorithm 1).

    candidates    tensors whose gap between two consecutive accesses meets the peak: the calls during which live bytes,
                  less what the plan saves already, exceed the budget. Of several gaps the one of most free time,
                  FT = (back-access - SwapTime in) - (evicted-access + SwapTime out).
    swap          by FT, longest first, what both directions of the link can hide, until the peak is gone.
    hybrid        then, again and again, the swap with the least exposed time against the recomputation with the most
                  memory saved a second; the cheaper one is taken, the other goes back.
    as listed     instead of both: each candidate, by FT, in the cheaper way.

Persistent tensors stay. Times are whole nanoseconds, so that a sum does not depend on its order. Knows no in-triggers.
"""

from __future__ import annotations

import heapq

from minidl.plan.costs import Costs
from minidl.plan.trace import TensorId
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.capuchin.link_time import LinkTime
from minidl.policies.capuchin.live_bytes import LiveBytes
from minidl.policies.capuchin.msps import Candidate, Recomputation, lineage

NANO = 1_000_000_000  # nanoseconds a second


class Choice:
    """What is evicted, chosen step by step. ``candidates`` is in order of FT, longest first."""

    def __init__(self, facts: Lifetimes, costs: Costs, budget_bytes: int) -> None:
        self.facts = facts
        self.budget_bytes = budget_bytes
        self.starts = [round(start * NANO) for start in facts.start_s]
        self.live_bytes = LiveBytes(facts.live_bytes)
        self.link_out, self.link_in = LinkTime(self.starts), LinkTime(self.starts)
        self.swapped: dict[TensorId, Candidate] = {}
        self.dropped: dict[TensorId, Candidate] = {}
        self.overhead = 0  # nanoseconds that all of it is expected to cost
        self.recomputation: Recomputation | None = None
        self.candidates = {c.tensor_id: c for c in self._candidates(costs)}

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
        return self.live_bytes.peak() > self.budget_bytes

    def _saves(self, evict: int, back: int) -> bool:
        return self.live_bytes.exceeds(evict + 1, back - 1, self.budget_bytes)

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

    def take_cheapest_first(self, *, swap: bool, recompute: bool) -> None:
        """The text of section 4.5: best swap against best recomputation, the cheaper one first."""
        if recompute and self.over_budget:
            self._weigh_recomputation()
        by_overhead = [(self.swap_overhead(c), n, c) for n, c in enumerate(self.candidates.values())] if swap else []
        heapq.heapify(by_overhead)
        while self.over_budget:
            cheapest = self._least_exposed(by_overhead)
            drop = self.recomputation.best(self.helps) if self.recomputation is not None else None
            if drop is not None and (cheapest is None or self.swap_overhead(cheapest) >= (drop.overhead or 0)):
                self.take_drop(drop)
            elif cheapest is not None:
                self.take_swap(cheapest)
            else:
                return

    def _least_exposed(self, by_overhead: list[tuple[int, int, Candidate]]) -> Candidate | None:
        # The link only fills up, so an overhead never falls: the front of the heap is right after a fresh look at it.
        while by_overhead:
            before, n, candidate = by_overhead[0]
            now = self.swap_overhead(candidate)
            if candidate.tensor_id not in self.candidates or not self.helps(candidate):
                heapq.heappop(by_overhead)
            elif now != before:
                heapq.heapreplace(by_overhead, (now, n, candidate))
            else:
                return candidate
        return None

    def take_in_order(self, *, swap: bool, recompute: bool) -> None:
        """Algorithm 1 as listed: candidates by FT, each in the way that costs less."""
        if recompute:
            self._weigh_recomputation()
        for candidate in list(self.candidates.values()):
            if not self.over_budget:
                return
            if not self.helps(candidate):
                continue
            again = candidate.overhead
            if swap and (again is None or self.swap_overhead(candidate) < again):
                self.take_swap(candidate)
            elif again is not None:
                self.take_drop(candidate)

    def _weigh_recomputation(self) -> None:
        self.recomputation = Recomputation(self.facts, lambda k: self.starts[k + 1] - self.starts[k],
                                           self.candidates.values(), self.is_away)

    def take_swap(self, candidate: Candidate) -> None:
        """Swap this candidate out after its evicted-access."""
        landed = self.link_out.out_end(candidate.evict, candidate.swap_out)
        self.overhead += self.swap_overhead(candidate)
        self.link_out.take_out(candidate.evict, candidate.swap_out)
        self.link_in.take_in(landed, candidate.back, candidate.swap_in)
        self.swapped[candidate.tensor_id] = candidate
        if self.recomputation is not None:
            self.recomputation.swap(candidate, lambda call: self.is_away(candidate.tensor_id, call))
        self._taken(candidate)

    def take_drop(self, candidate: Candidate) -> None:
        """Drop this candidate after its evicted-access, to be recomputed."""
        assert self.recomputation is not None
        self.overhead += candidate.overhead or 0
        self.dropped[candidate.tensor_id] = candidate
        self.recomputation.recompute(candidate)
        self._taken(candidate)

    def _taken(self, candidate: Candidate) -> None:
        del self.candidates[candidate.tensor_id]
        self.live_bytes.add(candidate.evict + 1, candidate.back - 1, -candidate.nbytes)

    # Afterwards ----------------------------------------------------------------------------------------------
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
