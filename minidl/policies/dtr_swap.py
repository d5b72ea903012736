"""On-demand eviction by price, bytes and staleness: dynamic tensor rematerialization (DTR), which may also swap.

    h = price / (bytes x staleness); the tensor with the least h leaves first

The price is the time of the cheaper way to get the tensor back. A replay costs the time of the tensor's own call and of
the calls that compute the dropped tensors around it (``memory.neighbourhood``). A swap costs a copy in, and a copy out
unless the host has a valid copy; computation waits for both. Because some tensors can only be swapped, a swap's price
rises as the host fills.

Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021 (h_DTR); swapping is not part of that paper.
Staleness is counted in calls, not in seconds, so that a dry run makes the same decisions.
"""

from collections.abc import Sequence
from math import inf

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import FrontOrder, OnDemand, Pressure, Regime, Residency


class DtrSwap(OnDemand):
    """Drops tensors that are cheap to replay and swaps out the others; large tensors unused for long leave first."""

    name = "dtr-swap"
    weighs_recomputation = True
    reads_from_front = True
    regime = Regime(front=FrontOrder.PRICE)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return all residents by rising price / (bytes x staleness), each by the cheaper way, drop or swap-out."""
        costs, free = pressure.costs, pressure.host_free_bytes
        latency, into, out = costs.latency_seconds, costs.in_seconds_per_byte, costs.out_seconds_per_byte
        scarcity = pressure.host_bytes / free if free else inf
        all_seconds = sum(r.recompute_seconds or 0.0 for r in resident)
        ranked = []
        for r in resident:
            nbytes, again = r.nbytes, r.recompute_seconds
            seconds = latency + nbytes * into
            if not r.host_valid:
                seconds = (seconds + latency + nbytes * out) * scarcity
            action = Action.SWAP_OUT
            if again is not None and again <= seconds:
                seconds, action = again, Action.DROP
            elif seconds == inf:  # it will be dropped, and its replay is long: as long as all others together
                seconds = all_seconds
            ranked.append((seconds / (nbytes * (r.idle_calls + 1)), r.tensor_id, action))
        ranked.sort(key=lambda entry: entry[:2])  # ties by id, so that the same program has the same victims
        return [Eviction(tensor_id, action) for _, tensor_id, action in ranked]
