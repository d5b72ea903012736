"""MegEngine's rematerialization: DTR's ranking with the holes beside a tensor, and with replays made dearer.

    h = (cost + 1e-3) x 1.0001 ^ replays / ((MB + MB free before it + MB free after it) x (staleness + 1e-3))

The holes fight fragmentation, the power breaks loops of recomputation. Victims leave until what is wanted is free in
one piece; of less than 1 MB none does while larger ones can. Source: the engine's own code (MegEngine, 2021), whose
option of looking at a sample is left out. Cost is in seconds, staleness in calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand, Pressure, Price, Regime, Residency

MB = 1 << 20
EPSILON = 1e-3
LOOP = 1.0001  # by which each replay makes the next one dearer


class MegEngine(OnDemand):
    """Drop what costs least for the room that it leaves."""

    name = "megengine"
    weighs_recomputation = True
    regime = Regime(swaps=False, one_piece=True, price=Price.NEIGHBOURHOOD)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """The recomputable tensors: those of at least 1 MB, the smallest h first, then the smaller tensors."""
        ranked = [(r.nbytes < MB, worth(r, r.recompute_seconds), r.tensor_id) for r in resident
                  if r.recompute_seconds is not None]
        return [Eviction(tensor_id, Action.DROP) for *_, tensor_id in sorted(ranked)]


def worth(r: Residency, cost: float) -> float:
    """h of a tensor."""
    room = (r.nbytes + r.free_before + r.free_after) / MB
    return float((cost + EPSILON) * LOOP**r.replays / (room * (r.idle_calls + EPSILON)))
