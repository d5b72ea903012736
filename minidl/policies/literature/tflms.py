"""TFLMS: swap along the long edges of the graph (Le et al., "TFLMS: Large Model Support in TensorFlow by Graph
Rewriting", 2018; IBM's releases 1 and 2).

    level        of a call: one more than the highest of those whose results it reads
    long edge    from a tensor's producer or last reader to its next reader, more than ``threshold`` levels apart, the
                 turn to the backward pass in between: swapped out after the one, swapped in before the other. Readers
                 that are nearer to each other share one swap-in (fused).
    direct order the swap-in starts after the last call that is ``ahead`` levels or more below the reader
    chain rule   it starts with a gradient of the calls that came up to ``ahead`` levels after the producer, forward: of
                 those the highest level that has one; where none has, in direct order

The threshold is the largest under which all fits; ahead, the fewest levels that hide half of the bytes' copies.
"""

from __future__ import annotations

from collections.abc import Iterator

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Plan
from minidl.policies.literature.network import FeatureMap, Network
from minidl.policies.literature.static import Static, outcome_of
from minidl.policies.literature.swapping import Swap, of_gap, triggers

MOST_AHEAD = 64  # levels


class Tflms(Static):
    """Swap long edges, with swap-ins in direct order."""

    name = "tflms"

    def choose(self, network: Network, costs: Costs, limits: Limits) -> Plan:
        """The plan of the largest threshold that fits, or of the smallest there is."""
        level = levels(network)
        lengths = sorted({level[m.back] - level[m.last] for m in network.maps})
        low, high = 0, len(lengths)  # with the low-th largest length and all above it swapped
        while low < high:
            middle = (low + high) // 2
            if outcome_of(network, self._rewritten(network, level, lengths[-1 - middle]), limits).excess > 0:
                low = middle + 1
            else:
                high = middle
        return self._rewritten(network, level, lengths[-1 - min(low, len(lengths) - 1)])

    def trigger(self, network: Network, level: list[int], swap: Swap, ahead: int) -> int:
        """The call after which a swap-in starts."""
        return direct_order(level, swap, ahead)

    def _rewritten(self, network: Network, level: list[int], least_length: int) -> Plan:
        """The plan that swaps all edges of at least so many levels."""
        swaps = [of_gap(network, m.gap) for m in _long_edges(network.maps, level, least_length)]
        ahead = hiding(network, level, swaps)
        wanted = sorted((call, swap) for swap in swaps
                        if (call := self.trigger(network, level, swap, ahead)) > swap.evict)
        return Plan({network.key(swap.tensor_id, swap.evict): Action.SWAP_OUT for swap in swaps},
                    triggers(network, wanted))


class TflmsChain(Tflms):
    """Swap long edges, with swap-ins by the chain rule."""

    name = "tflms-chain"

    def trigger(self, network: Network, level: list[int], swap: Swap, ahead: int) -> int:
        """The call after which a swap-in starts."""
        found = chain_rule(network, level, swap, ahead)
        return direct_order(level, swap, ahead) if found is None else found


def levels(network: Network) -> list[int]:
    """The level of each call. A call that writes in place is above the calls that read the old value (control
    edges)."""
    made: dict[int, int] = {}
    found = []
    for call in network.trace.calls:
        level = 1 + max((made.get(t, 0) for t in call.inputs), default=0)
        made.update(dict.fromkeys((*call.outputs, *call.writes), level))
        found.append(level)
    return found


def direct_order(level: list[int], swap: Swap, ahead: int) -> int:
    """The last call at least so many levels below the reader; the one that evicts the tensor if none is in its gap."""
    below = (k for k in range(swap.back - 1, swap.evict, -1) if level[k] <= level[swap.back] - ahead)
    return next(below, swap.evict)


def chain_rule(network: Network, level: list[int], swap: Swap, ahead: int) -> int | None:
    """The first gradient in the gap that reads what forward calls nearest to ``ahead`` levels above the producer made;
    None if there is none."""
    calls = network.trace.calls
    for distance in range(ahead, 0, -1):
        for k in range(swap.evict + 1, network.turn):
            if level[k] == level[swap.evict] + distance:
                later = [use for t in calls[k].outputs for use in network.trace.uses[t]
                         if network.turn <= use < swap.back]
                if later:
                    return min(later)
    return None


def hiding(network: Network, level: list[int], swaps: list[Swap]) -> int:
    """The fewest levels by which swap-ins must be ahead for half of the bytes to be there in time, in direct order."""
    total = sum(swap.in_seconds for swap in swaps)
    for ahead in range(1, MOST_AHEAD):
        hidden = sum(swap.in_seconds for swap in swaps if swap.in_seconds <= network.starts[swap.back]
                     - network.starts[direct_order(level, swap, ahead) + 1])
        if 2 * hidden >= total:
            return ahead
    return MOST_AHEAD


def _long_edges(maps: tuple[FeatureMap, ...], level: list[int], least: int) -> Iterator[FeatureMap]:
    return (m for m in maps if level[m.back] - level[m.last] >= least)
