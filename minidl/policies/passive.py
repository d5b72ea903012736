"""On-demand paging of whole tensors (Capuchin, section 4.2, passive mode).

When an allocation fails, the tensor access list is scanned from its front for tensors of about the size that is
needed: what was accessed first is, in the backward pass, wanted last. Tensors that this iteration has not used yet
come at the end of the list.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Residency

NOT_YET = 1 << 62


def front_of_access_list(resident: Sequence[Residency], nbytes: int) -> list[Residency]:
    """Residents by first access; those of nbytes to twice that come before the smaller ones, these before larger."""
    return sorted(resident, key=lambda r: (
        r.first_access is None,
        0 if nbytes <= r.nbytes <= 2 * nbytes else 1 if r.nbytes < nbytes else 2,
        NOT_YET if r.first_access is None else r.first_access))


class Passive(OnDemand):
    """Swap from the front of the access list."""

    name = "passive"
    reads_from_front = True

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Swap all of them, from the front of the access list."""
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in front_of_access_list(resident, pressure.nbytes)]
