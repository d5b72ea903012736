"""AutoSwap of SINGA: swap what scores best at the peak of memory (Zhang et al., arXiv 1903.06631).

A candidate is a tensor of at least 1 MiB with two consecutive accesses on either side of the peak. Its scores:

    DOA    duration of absence: the gap less two copies, in seconds
    AOA    area of absence: DOA times bytes; where DOA is negative, DOA over bytes
    WDOA   weighted duration of absence: the bytes by which the load exceeds the limit, summed over the gap's seconds
    vote   majority voting: the sum of its ranks by the three

Candidates leave, the best score first, until the load at the peak is within the limit. Then the next peak follows; the
original stops after one. Copies back are queued from the last one backwards; one that finds no room waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.problem import Array
from minidl.policies.literature.network import Network
from minidl.policies.literature.swapping import of_gap, serialised
from minidl.policies.passive import Passive

LEAST_BYTES = 1 << 20  # of a tensor that may be swapped


class Candidate(NamedTuple):
    """A gap that spans the peak, by its number, with its tensor's bytes and the scores of its absence."""

    gap: int
    nbytes: int
    doa: float
    aoa: float
    wdoa: float


class AutoSwap(Passive):
    """Swap by majority voting of the three scores."""

    name = "autoswap"
    plans = True
    least_bytes = LEAST_BYTES
    scores: tuple[str, ...] = ("doa", "aoa", "wdoa")  # whose ranks are added

    def order(self, candidates: list[Candidate]) -> list[Candidate]:
        """Candidates, the one that leaves first at the front."""
        places = {c.gap: 0 for c in candidates}
        for score in self.scores:
            for place, c in enumerate(sorted(candidates, key=lambda c: (-getattr(c, score), c.gap))):
                places[c.gap] += place
        return sorted(candidates, key=lambda c: (places[c.gap], c.gap))

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Nothing is refused: where no candidate is left, memory is paged on demand."""
        network = Network.of(trace, costs)
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
    """Swap the tensors that are away longest."""

    name = "autoswap-doa"
    scores = ("doa",)


class AutoSwapAoa(AutoSwap):
    """Swap the tensors with the largest product of time away and bytes."""

    name = "autoswap-aoa"
    scores = ("aoa",)


class AutoSwapWdoa(AutoSwap):
    """Swap the tensors that are away while the load exceeds the limit most."""

    name = "autoswap-wdoa"
    scores = ("wdoa",)


def _candidates(network: Network, load: Array, peak: int, limit: int, least_bytes: int) -> list[Candidate]:
    """The gaps that span a call, with their scores."""
    facts, starts = network.facts, np.array(network.starts)
    over = np.concatenate(([0.0], np.cumsum(np.maximum(load - limit, 0) * np.diff(starts))))
    found = []
    for gap in np.flatnonzero((facts.gap_call < peak) & (facts.gap_next > peak)).tolist():
        n, first, last = facts.gap_tensor[gap], int(facts.gap_call[gap]), int(facts.gap_next[gap])
        nbytes = int(facts.size[n])
        if nbytes >= least_bytes:
            doa = float(starts[last] - starts[first + 1] - facts.out_seconds[n] - facts.in_seconds[n])
            found.append(Candidate(gap, nbytes, doa, doa * nbytes if doa >= 0 else doa / nbytes,
                                   float(over[last] - over[first + 1])))
    return found
