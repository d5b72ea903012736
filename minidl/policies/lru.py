"""On-demand swapping of the least recently used tensors, as an operating system pages memory.

The backward pass uses tensors in about the reverse order, so the least recently used tensor is often also the one that
is needed last. Parameters and optimizer state are swapped like activations.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import FrontOrder, OnDemand, Pressure, Regime, Residency


class LeastRecentlyUsed(OnDemand):
    """Swaps out the tensors that have been unused for the most calls."""

    name = "lru"
    reads_from_front = True
    regime = Regime(front=FrontOrder.RECENCY)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return swap-outs of all residents, the longest unused first, then by id."""
        by_use = sorted(resident, key=lambda r: (-r.idle_calls, r.tensor_id))
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in by_use]
