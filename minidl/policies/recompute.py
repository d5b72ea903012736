"""On-demand paging that drops what lineage can make again, and swaps the rest.

What is dropped makes what hangs together with it dearer to make again (``memory.neighbourhood``), without end where
calls are many and small. So a tensor is swapped, too, when its replay would take longer than its copies.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.policies.passive import in_access_order


class Recompute(OnDemand):
    """Drop from the front of the access list; swap only what cannot be recomputed in less time, and last."""

    name = "recompute"
    weighs_recomputation = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Drop what can be made again, from the front of the access list; then swap the rest."""
        costs = pressure.costs
        seconds_per_byte = costs.out_seconds_per_byte + costs.in_seconds_per_byte

        def droppable(r: Residency) -> bool:
            return r.recompute_seconds is not None and (
                r.recompute_seconds <= 2 * costs.latency_seconds + r.nbytes * seconds_per_byte)

        ordered = in_access_order(resident, pressure.nbytes)
        dropped = [Eviction(r.tensor_id, Action.DROP) for r in ordered if droppable(r)]
        return dropped + [Eviction(r.tensor_id, Action.SWAP_OUT) for r in ordered if not droppable(r)]
