"""SuperNeurons: recompute cheap values and offload the others, as far as necessary (Wang et al., PPoPP 2018).

    recomputation   results of pooling, activations, normalisations and dropout are dropped after their last use in
                    the forward pass
    offloading      results of convolutions, products and joins, and the data (checkpoints), are swapped out, the
                    earliest first, until all fits; beside each layer's gradient the nearest missing one is swapped in
    tensor cache    if memory is still short, the least recently used tensor leaves first, on demand

The original recomputes a segment between checkpoints once for each value (memory-centric) if it is larger than the
largest layer's working set, else once (speed-centric). Here a replay keeps its results as long as memory lasts, which
is speed-centric, or memory-centric if memory is short. A convolution's workspace is a free block.
"""

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Plan, Proposal
from minidl.plan.trace import Trace
from minidl.policies.literature.network import (
    CONVOLUTIONS,
    JOINS,
    LOSSES,
    PRODUCTS,
    SOURCES,
    FeatureMap,
    IterationNetwork,
)
from minidl.policies.literature.static import outcome_of
from minidl.policies.literature.swapping import beside_gradients
from minidl.policies.lru import LeastRecentlyUsed

CHECKPOINTS = (*CONVOLUTIONS, *PRODUCTS, *JOINS, *LOSSES, *SOURCES)


class SuperNeurons(LeastRecentlyUsed):
    """Recomputes values that are quick to compute, and swaps out as many of the others as necessary."""

    name = "superneurons"
    plans = True

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return a plan that swaps out the fewest checkpoints that suffice, the earliest; all if even these do not."""
        network = IterationNetwork.of(trace, costs)
        checkpoints = [m for m in network.maps if network.op(m.made) in CHECKPOINTS or not m.can_drop]
        least, most = 0, len(checkpoints)
        while least < most:  # find the fewest that suffice; all if even these do not
            middle = (least + most) // 2
            if outcome_of(network, _made(network, checkpoints[:middle]), limits).excess > 0:
                least = middle + 1
            else:
                most = middle
        plan = _made(network, checkpoints[:least])
        return Proposal(plan) if plan.evictions else NO_PLAN


def _made(network: IterationNetwork, offloaded: list[FeatureMap]) -> Plan:
    """Return the plan that offloads these checkpoints and drops all values that are cheap to recompute."""
    evictions: dict[AccessKey, Action] = {}
    for m in network.maps:
        if network.op(m.made) not in CHECKPOINTS and m.can_drop:
            evictions[network.key(m.tensor_id, m.last)] = Action.DROP
    for m in offloaded:
        evictions[network.key(m.tensor_id, m.last)] = Action.SWAP_OUT
    return Plan(evictions, beside_gradients(network, offloaded)[0])
