"""Dynamic tensor rematerialization as published (Kirisame et al., ICLR 2021): tensors are dropped, never swapped out.

    h = cost / (bytes x staleness); the tensor with the least h leaves first

    dtr          the cost is that of the tensor's own call and of its evicted neighbourhood: the missing calls that
                 its replay needs, and the missing calls that need it
    dtr-eqclass  the neighbourhood is the equivalence class of connected missing calls (union-find); a replayed call
                 leaves its class without splitting it
    dtr-local    the cost is that of the tensor's own call alone
    dtr-ignore   as ``dtr``, but a tensor that the program has released stays until it is evicted; the other variants
                 free it at once, and recompute it if a replay needs it (eager eviction)

Staleness is counted in calls, not in seconds, so that a dry run decides the same. Parameters and data cannot leave,
because they exist before the program begins.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import FrontOrder, OnDemand, Pressure, Price, Regime, Residency


class Dtr(OnDemand):
    """Drops the tensor with the least cost / (bytes x staleness); the cost counts all missing calls around it."""

    name = "dtr"
    weighs_recomputation = True
    reads_from_front = True
    regime = Regime(swaps=False, price=Price.NEIGHBOURHOOD, front=FrontOrder.PRICE)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return drops of the recomputable tensors, the least cost / (bytes x staleness) first, ties by id."""
        ranked = [(r.recompute_seconds / (r.nbytes * (r.idle_calls + 1)), r.tensor_id)
                  for r in resident if r.recompute_seconds is not None]
        return [Eviction(tensor_id, Action.DROP) for _, tensor_id in sorted(ranked)]


class DtrEqClass(Dtr):
    """Drops as ``dtr`` does; the missing calls around a tensor are those of its class in a union-find structure."""

    name = "dtr-eqclass"
    regime = Regime(swaps=False, price=Price.REGIONS, front=FrontOrder.PRICE)


class DtrLocal(Dtr):
    """Drops as ``dtr`` does, but the cost counts the tensor's own call alone."""

    name = "dtr-local"
    regime = Regime(swaps=False, price=Price.OWN, front=FrontOrder.PRICE)


class DtrIgnore(Dtr):
    """Drops as ``dtr`` does, and keeps tensors that the program has released until they are evicted."""

    name = "dtr-ignore"
    regime = Regime(swaps=False, price=Price.NEIGHBOURHOOD, front=FrontOrder.PRICE, keeps_freed=True)
