"""On-demand eviction by price, bytes and staleness: dynamic tensor rematerialization (DTR), which may also swap.

    h = price / (bytes x staleness), and the least leaves first

The price is that of the cheaper way back. Making a tensor again costs its own call and all that was dropped around it
(``memory.neighbourhood``); swapping costs a copy out, unless the host has a valid one, and a copy in, and
computation waits for both here. Some tensors can only be swapped, so the bytes of the host become dearer for the
others as it fills.

Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021 (h_DTR); swapping and the host are not in it.
Staleness is counted in calls, not in seconds, so that a run on shapes alone decides alike.
"""

from collections.abc import Sequence
from math import inf

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import Front, OnDemand, Pressure, Regime, Residency


class DtrSwap(OnDemand):
    """Drop what is cheap to make again, swap what is not, the stalest first."""

    name = "dtr-swap"
    weighs_recomputation = True
    reads_from_front = True
    regime = Regime(front=Front.PRICE)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """All of them, the least price by bytes and staleness first, each in the cheaper way."""
        costs, free = pressure.costs, pressure.host_free_bytes
        scarcity = pressure.host_bytes / free if free else inf
        ranked = []
        for r in resident:
            seconds = costs.latency_seconds + r.nbytes * costs.in_seconds_per_byte
            if not r.host_valid:
                seconds = (seconds + costs.latency_seconds + r.nbytes * costs.out_seconds_per_byte) * scarcity
            action = Action.SWAP_OUT
            if r.recompute_seconds is not None and r.recompute_seconds <= seconds:
                seconds, action = r.recompute_seconds, Action.DROP
            ranked.append((seconds / (r.nbytes * (r.idle_calls + 1)), r.tensor_id, action))
        ranked.sort(key=lambda entry: entry[:2])  # equally good ones by id: the same program, the same victims
        return [Eviction(tensor_id, action) for _, tensor_id, action in ranked]
