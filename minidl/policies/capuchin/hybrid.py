"""Capuchin's hybrid of swapping and recomputing (section 4.5, Algorithm 1): it chooses tensors to swap out or to drop.

    candidates    tensors with a gap between two consecutive accesses that overlaps the peak: the calls during which
                  live bytes, less those that the plan saves already, exceed the budget. Of several gaps the one with
                  the most free time, FT = (back-access - SwapTime in) - (evicted-access + SwapTime out).
    swap          swap candidates whose copies are hidden, by falling FT, until the peak is gone. A copy out is hidden
                  if it ends before the peak needs its memory, a copy in if it fits between the peak and the
                  back-access.
    hybrid        then repeatedly compare the swap with the least exposed time and the recomputation with the largest
                  MSPS, and choose the cheaper one.
    as listed     instead of both: each candidate, by falling FT, in its cheaper way.

Other readings of the paper are switches in ``readings``; ``listing`` has the two algorithms as printed. Persistent
tensors stay. Times are whole nanoseconds, so that sums do not depend on their order.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from minidl.plan.costs import Costs
from minidl.plan.plan import AccessKey, Action
from minidl.plan.trace import TensorId
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.problem import Array
from minidl.policies.capuchin.link_time import LinkTime
from minidl.policies.capuchin.mem_saving import passive_bytes
from minidl.policies.capuchin.msps import GapCandidate, Recomputation, lineage
from minidl.policies.capuchin.readings import DEFAULT, Readings

NANO = 1_000_000_000  # nanoseconds per second


class Swaps(NamedTuple):
    """The cost of swapping, for each of several candidates, as the next decision: arrays, times in nanoseconds.

    overhead    the time of both copies that computation does not hide
    landed      the end of the copy out, or the time from which computation waits for it
    start, due  the start of the copy in; the first call that needs the tensor's memory
    """

    overhead: Array
    landed: Array
    start: Array
    due: Array


class EvictionPlanner:
    """Capuchin's planner. It chooses evictions one at a time; ``candidates`` are sorted by falling FT (free time).

    live   per call: bytes on the device under the plan. A swapped tensor counts until its copy out ends, and again from
           the start of its copy in.
    apart  per call: the same without prefetches, so that tensors return at their back-access.
    """

    def __init__(self, facts: Lifetimes, costs: Costs, budget_bytes: int, readings: Readings = DEFAULT, *,
                 host_bytes: float = inf) -> None:
        self.facts = facts
        self.budget_bytes = budget_bytes
        self.host_bytes = host_bytes
        self.readings = readings
        self.starts = np.array([round(start * NANO) for start in facts.start_s], np.int64)
        self.live = np.array(facts.live_bytes, np.int64)
        self.apart = self.live.copy()
        self._on_host = np.zeros(len(self.live) + 1, np.int64)  # per call: bytes that the plan has on the host
        self.mem_saving = passive_bytes(facts, budget_bytes) if readings.one_sum else 0  # bytes still to save
        self.link_out, self.link_in = LinkTime(self.starts), LinkTime(self.starts)
        self.swapped: dict[TensorId, GapCandidate] = {}
        self.dropped: dict[TensorId, GapCandidate] = {}
        self.triggers: dict[TensorId, tuple[int, int]] = {}  # SwapInStart, and the first call that may be in-trigger
        self.exposed = 0  # nanoseconds of all copies that computation does not hide
        self.recomputation: Recomputation | None = None
        self._find_peak()
        order = self._candidates(costs)
        self.candidates = {c.tensor_id: c for c in order}
        self._order: list[GapCandidate] = order
        self._position = {c.tensor_id: n for n, c in enumerate(order)}
        self._undecided = np.ones(len(order), np.bool_)
        self._evict, self._back, self._out, self._in, self._nbytes = (
            np.array([[c.evict, c.back, c.swap_out, c.swap_in, c.nbytes] for c in order], np.int64).reshape(-1, 5).T)

    def _candidates(self, costs: Costs) -> list[GapCandidate]:
        found = []
        starts = self.starts.tolist()
        for tensor_id, calls in self.facts.uses.items():
            if len(calls) < 2 or self.facts.trace.tensors[tensor_id].persistent:
                continue
            nbytes = self.facts.nbytes[tensor_id]
            out = round((costs.latency_seconds + nbytes * costs.out_seconds_per_byte) * NANO)
            back_in = round((costs.latency_seconds + nbytes * costs.in_seconds_per_byte) * NANO)
            best: GapCandidate | None = None
            for count, evict, back in self.facts.gaps(tensor_id):
                free_time = starts[back] - back_in - starts[evict] - out
                if (best is None or free_time > best.free_time) and self._next[evict + 1] < back:
                    best = GapCandidate(tensor_id, nbytes, evict, back, count, free_time, back_in, out)
            if best is not None:
                found.append(best)
        return sorted(found, key=lambda c: (-c.free_time, c.tensor_id))

    # The peak ------------------------------------------------------------------------------------------------
    def _find_peak(self) -> None:
        """For each call, find the next call whose bytes exceed the budget, and the previous one."""
        calls = len(self.live)
        over = self.live > self.budget_bytes
        numbers = np.arange(calls)
        self._next = np.append(np.minimum.accumulate(np.where(over, numbers, calls)[::-1])[::-1], [calls, calls])
        self._last = np.append(-1, np.maximum.accumulate(np.where(over, numbers, -1)))

    @property
    def over_budget(self) -> bool:
        """True if some call's bytes exceed the budget (with the reading ``one_sum``: if bytes are left to save)."""
        return self.mem_saving > 0 if self.readings.one_sum else bool(self._next[0] < len(self.live))

    def helps(self, candidate: GapCandidate) -> bool:
        """True if evicting the candidate's tensor would lower the bytes of a call that exceeds the budget."""
        return bool(self._next[candidate.evict + 1] < candidate.back)

    def swaps(self, which: Array) -> Swaps:
        """Return the cost of swapping each of these candidates now; ``which``: their positions in the order of FT."""
        evict, back, out, back_in = self._evict[which], self._back[which], self._out[which], self._in[which]
        begin = evict + int(self.readings.after_call)
        landed = self.link_out.out_end(begin, out)
        due = np.minimum(self._next[evict + 1], back)
        exposed, earliest = np.zeros_like(out), landed
        if self.readings.landed:
            exposed = np.maximum(0, out - self.link_out.left_between(begin, due))
            landed = np.minimum(landed, self.starts[due])
            earliest = np.maximum(landed, self.starts[np.minimum(due + 1, back)])
        if self.readings.triggers_first:
            earliest = np.maximum(earliest, self.starts[self._last[back] + 1])
        exposed = exposed + np.maximum(0, back_in - self.link_in.left_in(earliest, back))
        return Swaps(exposed, landed, self.link_in.in_start(earliest, back, back_in), due)

    def swap_overhead(self, candidate: GapCandidate) -> int:
        """Return the nanoseconds of the candidate's copy out and copy in that computation does not hide."""
        return int(self.swaps(np.array([self._position[candidate.tensor_id]])).overhead[0])

    def is_away(self, tensor_id: TensorId, call: int) -> bool:
        """True if the plan so far has evicted a tensor, and its copy in has not started, when ``call`` starts."""
        if tensor_id in self.dropped:
            return self.dropped[tensor_id].evict < call < self.dropped[tensor_id].back
        swapped = self.swapped.get(tensor_id)
        return (swapped is not None and swapped.evict < call and not self.readings.sources_stay
                and bool(self.starts[call] < self.starts[swapped.back] - swapped.swap_in))

    # Steps ---------------------------------------------------------------------------------------------------
    def swap_what_can_be_hidden(self) -> None:
        """Swap the candidates whose transfers computation hides, by falling FT, until the peak is gone."""
        while self.over_budget:
            cheapest, exposed = self._least_exposed()
            if cheapest is None or exposed:
                return
            self.take_swap(cheapest)

    def take_cheapest_first(self, *, swap: bool, recompute: bool) -> None:
        """Until no call exceeds the budget, choose the cheaper of the best swap and the best drop (section 4.5, text).
        swap, recompute: False leaves that way out."""
        if recompute and self.over_budget:
            self._weigh_recomputation()
        while self.over_budget:
            cheapest, exposed = self._least_exposed() if swap else (None, 0)
            drop = self.recomputation.best(self.helps) if self.recomputation is not None else None
            if drop is not None and (cheapest is None or self._is_cheaper(drop, cheapest, exposed)):
                self.take_drop(drop)
            elif cheapest is not None:
                self.take_swap(cheapest)
            else:
                return

    def _is_cheaper(self, drop: GapCandidate, swap: GapCandidate, exposed: int) -> bool:
        recompute = drop.overhead or 0
        return recompute * swap.nbytes <= exposed * drop.nbytes if self.readings.per_byte else recompute <= exposed

    def _least_exposed(self) -> tuple[GapCandidate | None, int]:
        """Return the candidate whose swap has the least overhead per byte (reading ``per_byte``), then the largest FT,
        and that overhead in nanoseconds. Candidates that do not lower the peak, or find no room on the host, do not
        count; (None, 0) if none is left."""
        which = np.flatnonzero(self._undecided & (self._next[self._evict + 1] < self._back))
        if self._nbytes.sum() > self.host_bytes:
            ends = np.stack([self._evict[which], self._back[which] + 1], 1).ravel()
            there = np.maximum.reduceat(self._on_host, ends)[::2] if len(ends) else ends
            which = which[there + self._nbytes[which] <= self.host_bytes]
        if not len(which):
            return None, 0
        overhead = self.swaps(which).overhead
        least = np.argmin(overhead / self._nbytes[which] if self.readings.per_byte else overhead)
        return self._order[int(which[least])], int(overhead[least])

    def _fits_host(self, candidate: GapCandidate) -> bool:
        """True if the host has room for the candidate beside what the plan swaps already."""
        there = int(self._on_host[candidate.evict:candidate.back + 1].max())
        return there + candidate.nbytes <= self.host_bytes

    def take_in_order(self, *, swap: bool, recompute: bool) -> None:
        """Choose candidates by falling FT, each in its cheaper way (Algorithm 1 as listed).
        swap, recompute: False leaves that way out."""
        if recompute:
            self._weigh_recomputation()
        for candidate in list(self.candidates.values()):
            if not self.over_budget:
                return
            if not self.helps(candidate):
                continue
            again = candidate.overhead
            if swap and self._fits_host(candidate) and (again is None or self.swap_overhead(candidate) < again):
                self.take_swap(candidate)
            elif again is not None:
                self.take_drop(candidate)

    def _weigh_recomputation(self) -> None:
        seconds = np.diff(self.starts).tolist()
        self.recomputation = Recomputation(self.facts, lambda k: seconds[k], self.candidates.values(), self.is_away,
                                           overwritten=self.readings.overwritten)

    def take_swap(self, candidate: GapCandidate) -> None:
        """Decide that the candidate is swapped out after its evicted-access. Updates bytes per call and free link time.
        """
        overhead, landed, start, due = (int(of[0]) for of in self.swaps(
            np.array([self._position[candidate.tensor_id]])))
        self.exposed += overhead
        if self.readings.triggers_first:
            self.triggers[candidate.tensor_id] = self._in_trigger(candidate)
        if self.readings.queueing:
            self.link_out.take_out(candidate.evict + int(self.readings.after_call), landed)
            self.link_in.take_in(start, candidate.back)
        self.swapped[candidate.tensor_id] = candidate
        self._on_host[candidate.evict:candidate.back + 1] += candidate.nbytes
        if self.recomputation is not None:
            self.recomputation.swap(candidate, lambda call: self.is_away(candidate.tensor_id, call))
        first, last = candidate.evict + 1, candidate.back - 1
        if self.readings.landed:
            first = max(first, int(np.searchsorted(self.starts, landed)))
            last = min(last, max(due, int(np.searchsorted(self.starts, start)) - 2))
        self._taken(candidate, first, last)

    def _in_trigger(self, candidate: GapCandidate) -> tuple[int, int]:
        """Return SwapInStart, in nanoseconds, and the first call that may be the in-trigger:
        the first after both the evicted-access and the peak. SwapInStart is as late as the link's free time, after
        all earlier decisions, allows."""
        back = np.array([candidate.back])
        start = self.link_in.in_start(self.starts[[candidate.evict + 1]], back, np.array([candidate.swap_in]))
        return int(start[0]), max(candidate.evict, int(self._last[candidate.back])) + 1

    def take_drop(self, candidate: GapCandidate) -> None:
        """Decide that the candidate is dropped after its evicted-access and recomputed at its back-access."""
        assert self.recomputation is not None
        self.dropped[candidate.tensor_id] = candidate
        self.recomputation.recompute(candidate)
        self._taken(candidate, candidate.evict + 1, candidate.back - 1)

    def _taken(self, candidate: GapCandidate, first: int, last: int) -> None:
        """Subtract the candidate's bytes from the calls ``first`` to ``last``, and find the peak that is left."""
        del self.candidates[candidate.tensor_id]
        self._undecided[self._position[candidate.tensor_id]] = False
        self.apart[first:candidate.back] -= candidate.nbytes
        self.mem_saving -= candidate.nbytes
        if not self.readings.one_sum:
            self.live[first:last + 1] -= candidate.nbytes
            self._find_peak()

    # Afterwards ----------------------------------------------------------------------------------------------
    def evictions(self) -> dict[AccessKey, Action]:
        """Return the decisions as a plan has them."""
        return {(c.tensor_id, c.count): action
                for action, chosen in ((Action.SWAP_OUT, self.swapped), (Action.DROP, self.dropped))
                for c in chosen.values()}

    def wanted_by_replays(self) -> dict[TensorId, int]:
        """Return for each swapped tensor that a replay reads before its back-access the first call with such a replay.
        """
        wanted: dict[TensorId, int] = {}
        for drop in self.dropped.values():
            found = lineage(self.facts, drop, lambda t, call: t in self.dropped and self.is_away(t, call))
            for source in found[1] if found is not None else ():
                swap = self.swapped.get(source)
                if swap is not None and swap.evict < drop.back < swap.back:
                    wanted[source] = min(wanted.get(source, swap.back), drop.back)
        return wanted
