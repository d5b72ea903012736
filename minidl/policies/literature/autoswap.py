"""AutoSwap of SINGA: swap out the tensors that score best at the memory peak (Zhang et al., arXiv 1903.06631).

A candidate is a tensor of at least 1 MiB with consecutive accesses before and after the peak. Its scores:

    DOA    duration of absence: the length of the gap minus both copies, in seconds
    AOA    area of absence: DOA times bytes; if DOA is negative, DOA divided by bytes
    WDOA   weighted duration of absence: the load's bytes above the limit, integrated over the seconds of the gap
    vote   majority voting: the sum of the candidate's ranks under the three scores

The best candidates leave until the load at the peak is within the limit. Then the next peak is treated; the original
stops after one peak. Swap-ins are scheduled backwards, the last one first; a swap-in without free memory waits.
"""

from typing import NamedTuple

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.problem import Array
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.swapping import of_gap, serialised
from minidl.policies.passive import Passive

LEAST_BYTES = 1 << 20  # smallest tensor that may be swapped out


class PeakGap(NamedTuple):
    """A gap that contains the moment of the peak: its number, its tensor's bytes, and its three scores."""

    gap: int
    nbytes: int
    doa: float
    aoa: float
    wdoa: float


class AutoSwap(Passive):
    """Swaps out the tensors that win a vote of three scores: duration, area and weighted duration of absence."""

    name = "autoswap"
    plans = True
    least_bytes = LEAST_BYTES
    scores: tuple[str, ...] = ("doa", "aoa", "wdoa")  # their ranks are added

    def order(self, candidates: list[PeakGap]) -> list[PeakGap]:
        """Return the candidates in the order in which they leave."""
        places = {c.gap: 0 for c in candidates}
        for score in self.scores:
            for place, c in enumerate(sorted(candidates, key=lambda c: (-getattr(c, score), c.gap))):
                places[c.gap] += place
        return sorted(candidates, key=lambda c: (places[c.gap], c.gap))

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the plan of the chosen swaps. If the candidates do not suffice, the rest is swapped out on demand."""
        network = IterationNetwork.of(trace, costs)
        load = np.array(Lifetimes.of(trace).live_bytes, np.int64)
        chosen: dict[int, None] = {}
        while load.max() > limits.device_bytes:
            peak = int(load.argmax())
            found = [c for c in _candidates(network, load, peak, limits.device_bytes, self.least_bytes)
                     if c.gap not in chosen]
            for c in self.order(found):
                if load[peak] <= limits.device_bytes:
                    break
                chosen[c.gap] = None
                load[network.facts.gap_call[c.gap] + 1:network.facts.gap_next[c.gap]] -= c.nbytes
            if load[peak] > limits.device_bytes:
                break
        return Proposal(serialised(network, (of_gap(network, gap) for gap in chosen))) if chosen else NO_PLAN


class AutoSwapDoa(AutoSwap):
    """Swaps out the tensors with the longest duration of absence."""

    name = "autoswap-doa"
    scores = ("doa",)


class AutoSwapAoa(AutoSwap):
    """Swaps out the tensors with the largest area of absence (seconds times bytes)."""

    name = "autoswap-aoa"
    scores = ("aoa",)


class AutoSwapWdoa(AutoSwap):
    """Swaps out the tensors whose gaps cover the most bytes above the memory limit, integrated over time."""

    name = "autoswap-wdoa"
    scores = ("wdoa",)


def _candidates(network: IterationNetwork, load: Array, peak: int, limit: int, least_bytes: int) -> list[PeakGap]:
    """Return the gaps that contain the call ``peak``, with their scores. load: bytes in use per call."""
    facts, starts = network.facts, np.array(network.starts)
    over = np.concatenate(([0.0], np.cumsum(np.maximum(load - limit, 0) * np.diff(starts))))
    found = []
    for gap in np.flatnonzero((facts.gap_call < peak) & (facts.gap_next > peak)).tolist():
        n, first, last = facts.gap_tensor[gap], int(facts.gap_call[gap]), int(facts.gap_next[gap])
        nbytes = int(facts.size[n])
        if nbytes >= least_bytes:
            doa = float(starts[last] - starts[first + 1] - facts.out_seconds[n] - facts.in_seconds[n])
            found.append(PeakGap(gap, nbytes, doa, doa * nbytes if doa >= 0 else doa / nbytes,
                                   float(over[last] - over[first + 1])))
    return found
