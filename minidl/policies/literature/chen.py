"""Sublinear memory by recomputing segments (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).

A value cuts the network in two if every later layer reads it, or values made after it, and nothing earlier.

chen-sqrt     of the n values that cut the network in two, every ceil(sqrt(n))-th is kept.
chen-greedy   a value that cuts the network is kept if the bytes produced since the last kept value exceed a
              threshold b. As in the paper, b is searched: 0, then two values sqrt(kept bytes * largest segment / 2),
              each from the result before, then six up to sqrt(2) times the next such. The lowest peak wins.
"""

from math import isqrt, sqrt
from typing import NamedTuple

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.trace import TensorId
from minidl.policies.literature.network import SOURCES, IterationNetwork
from minidl.policies.literature.static import Static, peak_bytes, recomputing

TRIALS = 6  # thresholds in the last, evenly spaced part of the search


class ChenSqrt(Static):
    """Keeps every sqrt(n)-th value that cuts the network in two, and recomputes the others."""

    name = "chen-sqrt"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan that keeps every ceil(sqrt(n))-th cutting value and drops other recomputable maps."""
        cuts = cutting(network)
        every = isqrt(len(cuts) - 1) + 1 if cuts else 1
        return recomputing(network, set(cuts[every - 1::every]))


class ChenGreedy(Static):
    """Keeps a value that cuts the network in two whenever the bytes since the last kept one exceed a threshold."""

    name = "chen-greedy"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan with the lowest peak among the tried thresholds."""
        threshold, tried = 0, []
        for _ in range(3):
            found = segments(network, threshold)
            tried.append(found)
            threshold = int(sqrt(found.kept_bytes * found.largest_bytes / 2))
        least = min(found.largest_bytes for found in tried)
        step = int((threshold * sqrt(2.0) - least) / TRIALS)
        if step > 0:
            tried += [segments(network, least + step * n) for n in range(1, TRIALS + 1)]
        return min((recomputing(network, found.kept) for found in tried), key=lambda plan: peak_bytes(network, plan))


class Segments(NamedTuple):
    """The result of one threshold:
    the kept values, their bytes, and the bytes produced in the largest segment between two."""

    kept: frozenset[TensorId]
    kept_bytes: int
    largest_bytes: int


def cutting(network: IterationNetwork) -> list[TensorId]:
    """Return the values of the forward pass that cut the network in two, in program order."""
    return network.articulations(frozenset(t for t, k in network.made.items() if network.op(k) not in SOURCES))


def segments(network: IterationNetwork, threshold: int) -> Segments:
    """Return what the greedy rule keeps at a threshold in bytes.
    It keeps a value that cuts the network where the bytes since the last kept one exceed the threshold."""
    allowed, sizes = set(cutting(network)), network.trace.tensors
    kept: set[TensorId] = set()
    kept_bytes = largest = local = 0
    for call in network.trace.calls[:network.turn]:
        for tensor_id in call.outputs:
            local += sizes[tensor_id].nbytes
            if tensor_id in allowed and local > threshold:
                kept.add(tensor_id)
                kept_bytes += sizes[tensor_id].nbytes
                largest, local = max(largest, local), 0
    return Segments(frozenset(kept), kept_bytes, largest)
