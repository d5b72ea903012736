"""Reference policies without plans: they choose victims when memory is short.

    od-belady   the tensor with the furthest next use leaves first (Belady 1966); until the sequence of calls is known,
                the least recently used one
    od-size     classes by size: first the smallest class of tensors that are large enough, then larger classes, then
                smaller ones. In a class the furthest next use leaves first. Tensors that are used within 80 calls
                leave after the others, in the same order; then those within 40, 20, and so on
    msps        recomputation only: the fewest seconds per byte leave first, missing ancestors included
    random      a random order
    keep-all    nothing leaves, and each call's inputs and outputs stay until its gradient is computed

The first two are SwapAdvisor's on-demand baseline (Huang et al., ASPLOS 2020), without its prefetching thread. ``msps``
is Capuchin's equation 2 as in DTR's simulator (Kirisame et al., ICLR 2021), ``keep-all`` the eager mode of its Table 3.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Eviction, Proposal
from minidl.plan.policy import OnDemand, Pressure, Price, Regime, Residency
from minidl.plan.trace import Trace
from minidl.policies.lru import LeastRecentlyUsed

NO_SWAP_CALLS = 80  # tensors used within so many calls leave later; halved until all tensors are ranked
SEED = 1


class OnDemandBelady(OnDemand):
    """Swaps out the tensor with the furthest next use; until the sequence of calls is known, the least recently used.
    """

    name = "od-belady"
    plans = True  # so that the engine recognises a repeated iteration and passes its trace

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return no plan: the policy needs the trace alone."""
        return NO_PLAN

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return swap-outs of all residents, the furthest next use first; as ``lru`` does until a trace is known."""
        if pressure.trace is None:
            return LeastRecentlyUsed().victims(resident, pressure)
        away = distances(resident, pressure.trace, pressure.call)
        return self.ranked(resident, away, pressure.nbytes)

    def ranked(self, resident: Sequence[Residency], away: dict[int, int], nbytes: int) -> Sequence[Eviction]:
        """Return the victims, the first to evict first. away: tensor -> the number of calls until its next use."""
        order = sorted(resident, key=lambda r: (-away[r.tensor_id], r.tensor_id))
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in order]


class OnDemandSize(OnDemandBelady):
    """Swaps out a tensor of about the needed size; among equal sizes, the one with the furthest next use."""

    name = "od-size"

    def ranked(self, resident: Sequence[Residency], away: dict[int, int], nbytes: int) -> Sequence[Eviction]:
        """Return the victims by size: from the needed size upwards, then the smaller ones. Tensors used soon come last.
        away: tensor id -> the number of calls until its next use."""
        classes = sorted(resident, key=lambda r: (r.nbytes < nbytes, r.nbytes if r.nbytes >= nbytes else -r.nbytes,
                                                  -away[r.tensor_id], r.tensor_id))
        order: dict[int, None] = {}
        distance = NO_SWAP_CALLS
        while len(order) < len(classes):
            order.update(dict.fromkeys(r.tensor_id for r in classes if away[r.tensor_id] >= distance))
            distance //= 2
        return [Eviction(tensor_id, Action.SWAP_OUT) for tensor_id in order]


def distances(resident: Sequence[Residency], trace: Trace, call: int) -> dict[int, int]:
    """Return, by tensor id, the number of calls until its next use, counted from ``call``.
    The trace is assumed to repeat in this iteration and the next."""
    calls, uses = len(trace.calls), trace.uses
    away = {}
    for r in resident:
        at = uses.get(r.tensor_id, ())
        following = bisect_left(at, call)
        if following < len(at):
            away[r.tensor_id] = at[following] - call
        else:  # a tensor that outlives the iteration is used again in the next one
            away[r.tensor_id] = calls - call + at[0] if r.persistent and at else 2 * calls
    return away


class OnlineMsps(OnDemand):
    """Drops the tensor that frees the most bytes per second of recomputation."""

    name = "msps"
    weighs_recomputation = True
    regime = Regime(swaps=False, price=Price.ANCESTORS)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return drops of the recomputable tensors, the fewest seconds per byte first."""
        priced = [(r.recompute_seconds / r.nbytes, r.tensor_id) for r in resident if r.recompute_seconds is not None]
        return [Eviction(tensor_id, Action.DROP) for _, tensor_id in sorted(priced)]


class Random(OnDemand):
    """Swaps out tensors in a random order, which is the same in every run."""

    name = "random"

    def __init__(self, seed: int = SEED) -> None:
        self.seed = seed

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return swap-outs of all residents in a random order, seeded by policy, call and needed bytes."""
        order = sorted(r.tensor_id for r in resident)
        random.Random(f"{self.seed} {pressure.call} {pressure.nbytes}").shuffle(order)
        return [Eviction(tensor_id, Action.SWAP_OUT) for tensor_id in order]


class KeepAll(OnDemand):
    """Evicts nothing, and keeps every output until its gradient is computed; a step that does not fit fails."""

    name = "keep-all"
    moves_tensors = False
    regime = Regime(keeps_outputs=True)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return no victims."""
        return ()
