"""On-demand paging that drops what lineage can make again, and swaps the rest."""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency
from minidl.policies.passive import front_of_access_list


class Recompute(OnDemand):
    """Drop from the front of the access list; swap only what cannot be recomputed, and last."""

    name = "recompute"
    weighs_recomputation = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Drop what can be made again, from the front of the access list; then swap the rest."""
        ordered = front_of_access_list(resident, pressure.nbytes)
        dropped = [Eviction(r.tensor_id, Action.DROP) for r in ordered if r.recompute_seconds is not None]
        return dropped + [Eviction(r.tensor_id, Action.SWAP_OUT) for r in ordered if r.recompute_seconds is None]
