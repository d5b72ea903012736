"""Chooses the start times of swap-ins for several systems, which themselves choose the tensors that are swapped out."""

from collections.abc import Iterable
from typing import NamedTuple

from minidl.plan.plan import AccessKey, Action, Plan
from minidl.plan.trace import TensorId
from minidl.policies.literature.network import FeatureMap, IterationNetwork


class Swap(NamedTuple):
    """One swap of a tensor: the calls before and after its absence, and the seconds of its swap-in."""

    tensor_id: TensorId
    evict: int
    back: int
    in_seconds: float


def of_gap(network: IterationNetwork, gap: int, *, spilled: bool = False) -> Swap:
    """Return the swap that fills a gap of the network's ``Problem``; ``spilled``: by way of the disk."""
    facts = network.facts
    n = facts.gap_tensor[gap]
    seconds = facts.disk_in_seconds[n] if spilled else facts.in_seconds[n]
    return Swap(int(facts.ids[n]), int(facts.gap_call[gap]), int(facts.gap_next[gap]), float(seconds))


def serialised(network: IterationNetwork, swaps: Iterable[Swap]) -> Plan:
    """Return the plan with these swaps, whose swap-ins run one after another, each as late as possible.
    Each starts after the latest call that leaves it enough time, if that call lies in the tensor's gap."""
    starts = network.starts
    evictions: dict[AccessKey, Action] = {}
    triggered: list[tuple[int, Swap]] = []
    link_free = starts[-1]
    for swap in sorted(swaps, key=lambda s: (s.back, s.tensor_id), reverse=True):
        evictions[network.key(swap.tensor_id, swap.evict)] = Action.SWAP_OUT
        link_free = min(link_free, starts[swap.back]) - swap.in_seconds
        call = swap.back - 1
        while call > swap.evict and starts[call + 1] > link_free:
            call -= 1
        if call > swap.evict:
            triggered.append((call, swap))
    return Plan(evictions, triggers(network, reversed(triggered)))


def triggers(network: IterationNetwork, wanted: Iterable[tuple[int, Swap]]) -> dict[AccessKey, tuple[TensorId, ...]]:
    """Return the in-triggers for swap-ins that start after given calls; swap-ins of one call keep their order."""
    prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
    for call, swap in wanted:
        key = network.access_of(call)
        prefetches[key] = (*prefetches.get(key, ()), swap.tensor_id)
    return prefetches


def beside_gradients(network: IterationNetwork, chosen: Iterable[FeatureMap]
                     ) -> tuple[dict[AccessKey, tuple[TensorId, ...]], list[AccessKey]]:
    """Return vDNN's in-triggers, at most one per layer's gradient, and the accesses at which these layers end.
    An in-trigger starts the swap-in of the nearest earlier layer's feature map that is still away; looking for it
    ends at a convolution."""
    layer_of = {m.tensor_id: m.last for m in network.maps}
    away = {m.last: m.tensor_id for m in chosen}
    convolutions = set(network.convolutions)
    prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
    joins: list[AccessKey] = []
    layer, started = network.turn, False
    for k in range(network.turn, len(network.trace.calls)):
        read = [layer_of[t] for t in network.trace.calls[k].inputs if t in layer_of]
        if not read:
            continue
        if started:  # the gradient of another layer begins
            joins.append(network.access_of(k - 1))
        layer, started = min(layer, *read), False
        for n in read:
            away.pop(n, None)
        for earlier in range(layer - 1, -1, -1):
            if earlier in away:
                prefetches[network.access_of(k - 1)] = (away.pop(earlier),)
                started = True
            if started or earlier in convolutions:
                break
    return prefetches, joins
