"""Reference policies without plans: they choose victims when memory is short.

    od-belady   the tensor with the furthest next use leaves first (Belady 1966); until the sequence is known, the least
                recently used
    od-size     classes by size: first the smallest class of tensors that are large enough, then larger ones, then
                smaller ones. In a class the furthest next use leaves first, unless it is within so many calls; then
                the same with half the distance
    msps        recomputation only: the least seconds per byte to recompute a tensor with its missing ancestors
    random      a random order
    keep-all    nothing leaves, and each call's inputs and outputs stay until its gradient is taken

The first two are the on-demand baseline of SwapAdvisor (Huang et al., ASPLOS 2020), without its thread that
prefetches. ``msps`` is the ranking of Capuchin's equation 2 as the simulator of DTR has it (Kirisame et al., ICLR
2021), ``keep-all`` the eager mode of Capuchin's Table 3.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Eviction, Proposal
from minidl.plan.policy import OnDemand, Pressure, Price, Regime, Residency
from minidl.plan.trace import Trace
from minidl.policies.lru import LeastRecentlyUsed

NO_SWAP_CALLS = 80  # what is used within so many calls leaves later; halved as often as that leaves too little
SEED = 1


class OnDemandBelady(OnDemand):
    """Swap the tensor with the furthest next use."""

    name = "od-belady"
    plans = True  # else the engine would not know which iteration this one is like

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """No plan: only the sequence is needed."""
        return NO_PLAN

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """All of them, the furthest next use first; as ``lru`` while no sequence is known."""
        if pressure.trace is None:
            return LeastRecentlyUsed().victims(resident, pressure)
        away = distances(resident, pressure.trace, pressure.call)
        return self.ranked(resident, away, pressure.nbytes)

    def ranked(self, resident: Sequence[Residency], away: dict[int, int], nbytes: int) -> Sequence[Eviction]:
        """The order of victims, given how many calls each tensor's next use is away."""
        order = sorted(resident, key=lambda r: (-away[r.tensor_id], r.tensor_id))
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in order]


class OnDemandSize(OnDemandBelady):
    """Swap a tensor of about the size that is wanted; of these the one with the furthest next use."""

    name = "od-size"

    def ranked(self, resident: Sequence[Residency], away: dict[int, int], nbytes: int) -> Sequence[Eviction]:
        """Classes by size: from the wanted size upwards, then downwards; tensors with a near next use come last."""
        classes = sorted(resident, key=lambda r: (r.nbytes < nbytes, r.nbytes if r.nbytes >= nbytes else -r.nbytes,
                                                  -away[r.tensor_id], r.tensor_id))
        order: dict[int, None] = {}
        distance = NO_SWAP_CALLS
        while len(order) < len(classes):
            order.update(dict.fromkeys(r.tensor_id for r in classes if away[r.tensor_id] >= distance))
            distance //= 2
        return [Eviction(tensor_id, Action.SWAP_OUT) for tensor_id in order]


def distances(resident: Sequence[Residency], trace: Trace, call: int) -> dict[int, int]:
    """How many calls the next use of each tensor is away from a call, in an iteration like this and then the next."""
    calls, uses = len(trace.calls), trace.uses
    away = {}
    for r in resident:
        at = uses.get(r.tensor_id, ())
        following = bisect_left(at, call)
        if following < len(at):
            away[r.tensor_id] = at[following] - call
        else:  # what outlives the iteration is used again in the next one
            away[r.tensor_id] = calls - call + at[0] if r.persistent and at else 2 * calls
    return away


class OnlineMsps(OnDemand):
    """Drop the tensor that saves the most bytes per second of recomputation."""

    name = "msps"
    weighs_recomputation = True
    regime = Regime(swaps=False, price=Price.ANCESTORS)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """The recomputable tensors, the fewest seconds per byte first."""
        priced = [(r.recompute_seconds / r.nbytes, r.tensor_id) for r in resident if r.recompute_seconds is not None]
        return [Eviction(tensor_id, Action.DROP) for _, tensor_id in sorted(priced)]


class Random(OnDemand):
    """Swap in a random order, the same in every run."""

    name = "random"

    def __init__(self, seed: int = SEED) -> None:
        self.seed = seed

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """All resident tensors, in an order drawn from the seed, the call and the bytes that are wanted."""
        order = sorted(r.tensor_id for r in resident)
        random.Random(f"{self.seed} {pressure.call} {pressure.nbytes}").shuffle(order)
        return [Eviction(tensor_id, Action.SWAP_OUT) for tensor_id in order]


class KeepAll(OnDemand):
    """Keep every output until its gradient is taken; a step that does not fit is an error."""

    name = "keep-all"
    moves_tensors = False
    regime = Regime(keeps_outputs=True)

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Nothing."""
        return ()
