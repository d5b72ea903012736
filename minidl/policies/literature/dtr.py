"""Dynamic tensor rematerialization as published (Kirisame et al., ICLR 2021): tensors are dropped, never swapped.

    h = cost / (bytes x staleness), and the least leaves first

    dtr          cost is that of the tensor's own call, and of its evicted neighbourhood: the missing calls that it
                 needs, and those that need it
    dtr-eqclass  the neighbourhood is the class of connected missing calls (union-find); a replayed call leaves its
                 class without splitting it
    dtr-local    cost is that of its own call alone
    dtr-ignore   as ``dtr``, and a tensor that the program has released stays until it is evicted; the others free it
                 at once, and a replay that needs it makes it again (eager eviction)

Staleness is counted in calls, not in seconds, so that a run on shapes alone decides alike. Parameters and data, which
exist before the program begins, cannot leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import Front, OnDemand, Pressure, Price, Regime, Residency


class Dtr(OnDemand):
    """Drop the tensor with the least h, by its exact neighbourhood."""

    name = "dtr"
    weighs_recomputation = True
    reads_from_front = True
    regime = Regime(swaps=False, price=Price.NEIGHBOURHOOD, front=Front.PRICE)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """The recomputable tensors, the smallest h first; equal ones by id."""
        ranked = [(r.recompute_seconds / (r.nbytes * (r.idle_calls + 1)), r.tensor_id)
                  for r in resident if r.recompute_seconds is not None]
        return [Eviction(tensor_id, Action.DROP) for _, tensor_id in sorted(ranked)]


class DtrEqClass(Dtr):
    """The neighbourhood by classes of equivalence."""

    name = "dtr-eqclass"
    regime = Regime(swaps=False, price=Price.REGIONS, front=Front.PRICE)


class DtrLocal(Dtr):
    """Each tensor's own call alone."""

    name = "dtr-local"
    regime = Regime(swaps=False, price=Price.OWN, front=Front.PRICE)


class DtrIgnore(Dtr):
    """Deallocation is ignored."""

    name = "dtr-ignore"
    regime = Regime(swaps=False, price=Price.NEIGHBOURHOOD, front=Front.PRICE, keeps_freed=True)
