"""On-demand eviction that drops tensors that can be replayed quickly, and swaps out the rest.

Each dropped tensor makes the replays of its neighbours longer (``memory.neighbourhood``), without limit if calls are
many and small. So a tensor is swapped out if its replay would take longer than its copies. When the host is full, such
tensors are dropped anyway, those with the least seconds per byte first.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.policies.passive import in_access_order


class Recompute(OnDemand):
    """Drops tensors in the order of their accesses, and swaps out, last, those whose replay takes longer than copies.
    """

    name = "recompute"
    weighs_recomputation = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return drops of tensors that replay faster than they swap, in access order, then swap-outs of the rest."""
        costs = pressure.costs
        seconds_per_byte = costs.out_seconds_per_byte + costs.in_seconds_per_byte

        def droppable(r: Residency) -> bool:
            return r.recompute_seconds is not None and (
                r.recompute_seconds <= 2 * costs.latency_seconds + r.nbytes * seconds_per_byte)

        ordered = in_access_order(resident, pressure.nbytes)
        dropped = [Eviction(r.tensor_id, Action.DROP) for r in ordered if droppable(r)]
        others = [r for r in ordered if not droppable(r)]
        if not pressure.host_free_bytes:
            dearest = sum(r.recompute_seconds or 0.0 for r in resident)  # of a long replay whose price is unknown
            others.sort(key=lambda r: (dearest if r.recompute_seconds is None else r.recompute_seconds) / r.nbytes)
        return dropped + [Eviction(r.tensor_id, Action.SWAP_OUT) for r in others]
