"""Treeverse: keep about log n snapshots at binomial distances, and recompute the rest (Griewank 1992).

A snapshot is a feature map that is kept; a sweep is one recomputation of a part of the chain. s snapshots and t sweeps
reverse a chain of n steps if C(s + t, s) >= n; here s is ceil(log2 n), and t the least that suffices. In an interval
from a to b, with s snapshots and t sweeps left, the next snapshot is at ceil((s a + t b) / (s + t)), and the rest has
one snapshot less. A step is the part of the network between two values that cut it in two.

Only the snapshots of the first sweep are kept. The engine chooses those of later sweeps: a replay keeps its results as
long as memory lasts. Source: "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation".
"""

from math import ceil, comb, log2

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.policies.literature.chen import cutting
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.static import Static, recomputing


class Griewank(Static):
    """Keeps about log n feature maps at binomial distances (treeverse), and recomputes the others."""

    name = "griewank"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan that drops all feature maps that can be recomputed, except for the snapshots."""
        cuts = cutting(network)
        return recomputing(network, {cuts[at - 1] for at in snapshots(len(cuts) + 1)})


def snapshots(steps: int) -> list[int]:
    """Return the numbers of the steps after which snapshots are taken, for a chain of ``steps`` steps."""
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
