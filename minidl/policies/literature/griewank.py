"""Treeverse: snapshots at binomial distances, about log n of them (Griewank 1992, "Achieving logarithmic growth of
temporal and spatial complexity in reverse automatic differentiation").

A chain of n steps is reversed with s snapshots and t sweeps where C(s + t, s) >= n; here s is ceil(log2 n) and t as
small as can be. Of an interval from a to b with s snapshots and t sweeps left the next snapshot is at
ceil((s a + t b) / (s + t)), and the rest of it has one less. A step is what lies between two values that cut the
network.

The snapshots of the first sweep are kept, everything else is dropped. The engine chooses the snapshots of later sweeps:
a replay keeps its results as long as memory lasts.
"""

from __future__ import annotations

from math import ceil, comb, log2

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.policies.literature.chen import cutting
from minidl.policies.literature.network import Network
from minidl.policies.literature.static import Static, recomputing


class Griewank(Static):
    """Keep the snapshots of treeverse's first sweep."""

    name = "griewank"

    def choose(self, network: Network, costs: Costs, limits: Limits) -> Plan:
        """Drop everything but the snapshots."""
        cuts = cutting(network)
        return recomputing(network, {cuts[at - 1] for at in snapshots(len(cuts) + 1)})


def snapshots(steps: int) -> list[int]:
    """After which of so many steps the first sweep sets its snapshots."""
    left = ceil(log2(steps)) if steps > 1 else 0
    sweeps = 1
    while comb(left + sweeps, left) < steps and left:
        sweeps += 1
    found: list[int] = []
    begin = 0
    while left:
        begin = ceil((left * begin + sweeps * steps) / (left + sweeps))
        if begin >= steps:
            break
        found.append(begin)
        left -= 1
    return found
