"""MegEngine's rematerialization: DTR's ranking that also counts adjacent holes and earlier replays.

    h = (cost + 1e-3) x 1.0001 ^ replays / ((MB + MB free before it + MB free after it) x (staleness + 1e-3))

Counting the holes reduces fragmentation; the power ends loops of recomputation. Victims leave until the wanted bytes
form one hole; tensors of less than 1 MB leave last. Cost is in seconds, staleness in calls. Source: MegEngine's code
(2021). Its option to rank only a sample is left out.
"""

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Price, Regime, Residency

MB = 1 << 20
EPSILON = 1e-3
LOOP = 1.0001  # factor by which each replay raises the cost of the next one


class MegEngine(OnDemand):
    """Drops the tensor that is quickest to recompute for the hole that its eviction leaves (DTR with holes)."""

    name = "megengine"
    weighs_recomputation = True
    regime = Regime(swaps=False, one_piece=True, price=Price.NEIGHBOURHOOD)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return drops of the recomputable tensors, first those of at least 1 MiB, each group by rising ``worth``."""
        ranked = [(r.nbytes < MB, worth(r, r.recompute_seconds), r.tensor_id) for r in resident
                  if r.recompute_seconds is not None]
        return [Eviction(tensor_id, Action.DROP) for *_, tensor_id in sorted(ranked)]


def worth(r: Residency, cost: float) -> float:
    """Return h, by which tensors leave, the least first, for one whose recomputation takes ``cost`` seconds."""
    room = (r.nbytes + r.free_before + r.free_after) / MB
    return float((cost + EPSILON) * LOOP**r.replays / (room * (r.idle_calls + EPSILON)))
