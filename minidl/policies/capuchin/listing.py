"""Capuchin's policy as printed: Algorithms 1 and 2 (Peng et al., ASPLOS 2020, section 4.5), line by line.

Numbers in comments are lines of the printed algorithms. Details that the paper leaves open are filled in simply: the
peak is the measured one; the in-trigger is the latest access before SwapInStart and after the peak, or else the first
after the peak; every transfer has the link to itself; a swapped tensor counts as an available source. No step is
optimized. ``hybrid`` and ``msps`` improve on the printed algorithms, and ``readings`` has a switch for each difference.
Times are whole nanoseconds. Feedback is not part of these algorithms.

ext_time, printed and counted: T1 -> T2 and T1 -> T3, T1 taking 1 ms to make. T2 is chosen, then T3; each replay of both
starts from T1, so dropping T1, too, would make it three times in all. Line 31 sets its ext_time to ext_ct * rp_time
= 1 ms for the last choice, T3, and forgets T2; counted as in lines 22 to 27 it is 2 ms.
"""

from dataclasses import dataclass, field
from math import inf

from minidl.plan.costs import Costs
from minidl.plan.trace import TensorId, Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.policies.capuchin.mem_saving import passive_bytes
from minidl.policies.capuchin.msps import GapCandidate, lineage


@dataclass(eq=False)
class Tensor:
    """A candidate: the calls of its evicted-access and back-access, and its costs of swapping and recomputing.
    mem: bytes; count: the number of the evicted-access among the tensor's accesses, from 1; times in nanoseconds."""

    id: TensorId
    mem: int
    evict: int
    back: int
    count: int
    swap_out_time: int
    swap_in_time: int
    free_time: int
    in_trigger: int = 0  # the call that starts the swap-in; the back-access: on demand
    rp_time: float = inf  # inf: it cannot be replayed
    ext_time: float = 0
    srcs: set[TensorId] = field(default_factory=set)

    @property
    def msps(self) -> float:
        """Memory saving per nanosecond (equation 2): bytes / (rp_time + ext_time)."""
        return self.mem / (self.rp_time + self.ext_time) if self.rp_time + self.ext_time else inf


class Listing:
    """A planner that carries out Capuchin's Algorithms 1 and 2 as printed, for the trace of one measured iteration.
    counted: True counts in ext_time all choices whose replay starts from a tensor; False only the last, as printed."""

    def __init__(self, trace: Trace, costs: Costs, budget_bytes: int, *, counted: bool = False) -> None:
        self.facts = facts = Lifetimes.of(trace)
        self.counted = counted
        self.time = [round(seconds * 1e9) for seconds in facts.start_s]
        self.peak = [live > budget_bytes for live in facts.live_bytes]
        self.mem_saving = passive_bytes(facts, budget_bytes)
        self.candidates = self.identify_and_sort_candidates(costs)
        self.swaps: list[Tensor] = []
        self.recomps: list[Tensor] = []
        self.init_msps()

    def algorithm_1(self) -> None:
        """Run the hybrid policy: choose candidates by falling free time, each in its cheaper way."""
        for t in list(self.candidates):  # 2
            if self.mem_saving <= 0:  # 13, 14
                break
            self.choose_swap_in_trigger(t)  # 3
            s_overhead = self.swap_overhead(t)  # 4
            r_overhead = t.rp_time + t.ext_time  # 5
            if s_overhead < r_overhead:  # 6
                self.swaps.append(t)  # 7
                self.candidates.remove(t)  # 16
            elif r_overhead < inf:  # 9
                self.recompute(t)  # 10, 16
            else:
                continue  # it can neither be swapped cheaply nor be recomputed
            self.mem_saving -= t.mem  # 12

    def algorithm_2(self) -> None:
        """Run the recomputation policy: choose the candidate with the largest MSPS first."""
        while self.mem_saving > 0:  # 3
            t = max(self.candidates, key=lambda c: (c.msps, -c.id), default=None)  # 4
            if t is None or t.rp_time == inf:
                break
            self.recompute(t)
            self.mem_saving -= t.mem  # 15

    def recompute(self, t: Tensor) -> None:
        """Choose a tensor for recomputation, and update all others (Algorithm 2, lines 5 to 34)."""
        ext_ct = 1  # 5
        for rp in self.recomps:  # 6
            if t.id in rp.srcs:  # 7
                rp.srcs = rp.srcs - {t.id} | t.srcs  # 8, 9
                ext_ct += 1  # 10
        self.recomps.append(t)  # 13
        self.candidates.remove(t)  # 14
        for cand in self.candidates:  # 17
            if t.id in cand.srcs:  # 18
                cand.srcs = cand.srcs - {t.id} | t.srcs  # 19, 20
                cand.rp_time += t.rp_time  # 21
                cand.ext_time = sum(cand.rp_time for rp in self.recomps if cand.id in rp.srcs)  # 22 to 27
            if cand.id in t.srcs:  # 30
                cand.ext_time = ext_ct * cand.rp_time  # 31
                if self.counted:
                    cand.ext_time = sum(cand.rp_time for rp in self.recomps if cand.id in rp.srcs)

    def identify_and_sort_candidates(self, costs: Costs) -> list[Tensor]:
        """Return the tensors with a gap that overlaps the peak, by falling free time of their best gap.
        Source: section 4.5, equation 1."""
        found = []
        for tensor_id in self.facts.uses:
            mem = self.facts.nbytes[tensor_id]
            out = round((costs.latency_seconds + mem * costs.out_seconds_per_byte) * 1e9)
            back_in = round((costs.latency_seconds + mem * costs.in_seconds_per_byte) * 1e9)
            gaps = [Tensor(tensor_id, mem, evict, back, n, out, back_in,
                           (self.time[back] - back_in) - (self.time[evict] + out))
                    for n, evict, back in self.facts.gaps(tensor_id)
                    if any(self.peak[evict + 1:back])]
            if gaps and not self.facts.trace.tensors[tensor_id].persistent:
                found.append(max(gaps, key=lambda t: t.free_time))
        return sorted(found, key=lambda t: (-t.free_time, t.id))

    def init_msps(self) -> None:
        """Set each candidate's rp_time and its sources that are candidates (section 4.4)."""
        ids = {t.id for t in self.candidates}
        for t in self.candidates:
            found = lineage(self.facts, GapCandidate(t.id, t.mem, t.evict, t.back), lambda source, call: False)
            if found is not None:
                t.rp_time = sum(self.time[k + 1] - self.time[k] for k in found[0])
                t.srcs = found[1] & ids

    def choose_swap_in_trigger(self, t: Tensor) -> None:
        """Set the tensor's in-trigger:
        the latest call in the gap before SwapInStart and after the peak; if none, the first call after the peak."""
        after_peak = max(k for k in range(t.evict + 1, t.back) if self.peak[k]) + 1
        swap_in_start = self.time[t.back] - t.swap_in_time
        earlier = [k for k in range(after_peak, t.back) if self.time[k] < swap_in_start]
        t.in_trigger = earlier[-1] if earlier else after_peak

    def swap_overhead(self, t: Tensor) -> int:
        """Return by how many nanoseconds a swap-in is late at the back-access.
        It starts at the in-trigger, but not before the swap-out has ended."""
        swap_out_end = self.time[t.evict] + t.swap_out_time
        return max(0, t.swap_in_time - (self.time[t.back] - max(swap_out_end, self.time[t.in_trigger])))
