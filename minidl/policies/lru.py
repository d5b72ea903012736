"""On-demand paging that swaps the least recently used first, as an operating system pages memory.

Training uses tensors again in about the reverse order, so what has rested longest is often what rests longest still; an
optimizer's state and the parameters go as well as activations do.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import Front, OnDemand, Pressure, Regime, Residency


class LeastRecentlyUsed(OnDemand):
    """Swap what has not been used for the most calls."""

    name = "lru"
    reads_from_front = True
    regime = Regime(front=Front.RECENCY)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """All residents, the longest unused first; of equals the one of the smallest id."""
        by_use = sorted(resident, key=lambda r: (-r.idle_calls, r.tensor_id))
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in by_use]
