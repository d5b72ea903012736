"""On-demand paging of whole tensors (Capuchin, section 4.2, passive mode).

When an allocation fails, the tensor access list is scanned from its front for tensors of about the size that is
needed: what was accessed first is, in the backward pass, wanted last. Tensors that this iteration has not used yet
come at the end of the list.
"""

from collections.abc import Sequence

from minidl.plan.access_order import in_access_order
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency


class Passive(OnDemand):
    """Swap from the front of the access list."""

    name = "passive"
    reads_from_front = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Swap all of them, from the front of the access list."""
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in in_access_order(resident, pressure.nbytes)]
