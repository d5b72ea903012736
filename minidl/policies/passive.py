"""On-demand swapping of whole tensors (Capuchin, section 4.2, passive mode).

When an allocation fails, the tensor access list is scanned from its front for tensors of about the needed size: the
backward pass needs the tensor last that was accessed first. Tensors that this iteration has not used yet are at the
end of the list.
"""

from collections.abc import Sequence

from minidl.plan.access_order import in_access_order
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency


class Passive(OnDemand):
    """A policy that swaps out tensors from the front of the access list."""

    name = "passive"
    reads_from_front = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return swap-outs of all residents, from the front of the access list."""
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in in_access_order(resident, pressure.nbytes)]
