"""TFLMS: swap out tensors along the long edges of the graph (Le et al., 2018; IBM's releases 1 and 2).

    level        a call's level is one more than the highest level among the calls whose results it reads
    long edge    an edge from a tensor's last access in the forward pass to its first reader in the backward pass that
                 spans a threshold of levels or more. The tensor is swapped out after this access and swapped in before
                 this reader. Readers close to each other share one swap-in (fused).
    direct order the swap-in starts after the last call that is ``ahead`` or more levels below the reader
    chain rule   the swap-in starts after a gradient that reads results of a forward call up to ``ahead`` levels above
                 the last forward access; the highest such level counts. If there is none, direct order decides.

The threshold is the largest under which all fits; ``ahead`` is the fewest levels that hide half of the swapped bytes.
Source: "TFLMS: Large Model Support in TensorFlow by Graph Rewriting".
"""

from collections.abc import Iterator

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Plan
from minidl.policies.literature.network import FeatureMap, IterationNetwork
from minidl.policies.literature.static import Static, outcome_of
from minidl.policies.literature.swapping import Swap, of_gap, triggers

MOST_AHEAD = 64  # most levels that a swap-in may start ahead of its reader


class Tflms(Static):
    """Swaps out along long edges of the graph; a swap-in starts a number of levels before its reader."""

    name = "tflms"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan of the largest threshold that fits; that of the smallest threshold if none fits."""
        level = levels(network)
        lengths = sorted({level[m.back] - level[m.last] for m in network.maps})
        low, high = 0, len(lengths)  # index of the threshold among the lengths, largest first
        while low < high:
            middle = (low + high) // 2
            if outcome_of(network, self._rewritten(network, level, lengths[-1 - middle]), limits).excess > 0:
                low = middle + 1
            else:
                high = middle
        return self._rewritten(network, level, lengths[-1 - min(low, len(lengths) - 1)])

    def trigger(self, network: IterationNetwork, level: list[int], swap: Swap, ahead: int) -> int:
        """Return the call after which a swap-in starts: the last one at least ``ahead`` levels below its reader.
        level: the level of each call, from ``levels``."""
        return direct_order(level, swap, ahead)

    def _rewritten(self, network: IterationNetwork, level: list[int], least_length: int) -> Plan:
        """Return the plan that swaps feature maps along long edges, of at least ``least_length`` levels.
        Each map has one edge: from its last access of the forward pass to its first of the backward pass."""
        swaps = [of_gap(network, m.gap) for m in _long_edges(network.maps, level, least_length)]
        ahead = hiding(network, level, swaps)
        wanted = sorted((call, swap) for swap in swaps
                        if (call := self.trigger(network, level, swap, ahead)) > swap.evict)
        return Plan({network.key(swap.tensor_id, swap.evict): Action.SWAP_OUT for swap in swaps},
                    triggers(network, wanted))


class TflmsChain(Tflms):
    """Swaps out along long edges; a swap-in starts when the backward pass reaches a forward call near the eviction."""

    name = "tflms-chain"

    def trigger(self, network: IterationNetwork, level: list[int], swap: Swap, ahead: int) -> int:
        """Return the call after which a swap-in starts: by the chain rule, or in direct order if that rule finds none.
        level: the level of each call, from ``levels``. ahead: the number of levels in both rules (see the module)."""
        found = chain_rule(network, level, swap, ahead)
        return direct_order(level, swap, ahead) if found is None else found


def levels(network: IterationNetwork) -> list[int]:
    """Return the level of each call: one more than the highest level among the calls that it reads from.
    A call that reads a tensor after an in-place write is above the write."""
    made: dict[int, int] = {}
    found = []
    for call in network.trace.calls:
        level = 1 + max((made.get(t, 0) for t in call.inputs), default=0)
        made.update(dict.fromkeys((*call.outputs, *call.writes), level))
        found.append(level)
    return found


def direct_order(level: list[int], swap: Swap, ahead: int) -> int:
    """Return the last call in the gap at least ``ahead`` levels below the reader; if none, the evicting call."""
    below = (k for k in range(swap.back - 1, swap.evict, -1) if level[k] <= level[swap.back] - ahead)
    return next(below, swap.evict)


def chain_rule(network: IterationNetwork, level: list[int], swap: Swap, ahead: int) -> int | None:
    """Return the first gradient in the gap that reads results of forward calls ``ahead`` levels above the eviction.
    Lower levels are tried if that level has none; None if no level has one."""
    calls = network.trace.calls
    for distance in range(ahead, 0, -1):
        for k in range(swap.evict + 1, network.turn):
            if level[k] == level[swap.evict] + distance:
                later = [use for t in calls[k].outputs for use in network.trace.uses[t]
                         if network.turn <= use < swap.back]
                if later:
                    return min(later)
    return None


def hiding(network: IterationNetwork, level: list[int], swaps: list[Swap]) -> int:
    """Return how many levels before their readers swap-ins must start so that computation hides half of their time.
    The fewest that suffice, at most 64, if all of them start in direct order."""
    total = sum(swap.in_seconds for swap in swaps)
    for ahead in range(1, MOST_AHEAD):
        hidden = sum(swap.in_seconds for swap in swaps if swap.in_seconds <= network.starts[swap.back]
                     - network.starts[direct_order(level, swap, ahead) + 1])
        if 2 * hidden >= total:
            return ahead
    return MOST_AHEAD


def _long_edges(maps: tuple[FeatureMap, ...], level: list[int], least: int) -> Iterator[FeatureMap]:
    return (m for m in maps if level[m.back] - level[m.last] >= least)
