"""OpenAI's gradient checkpointing (Salimans and Bulatov, 2018): recompute between automatically chosen checkpoints.

    speed    results of convolutions and matrix products are kept; all other feature maps are recomputed.
    memory   N values are read by the backward pass; B of them cut the network in two (bottlenecks). If B < sqrt(N),
             cutting values that the backward pass does not read count, too. If B is at most sqrt(N), all B are kept,
             else every ceil(B / sqrt(N))-th.

Values of up to 1,024 elements and results of batch normalisation, dropout and the loss do not count. A segment is
recomputed when the backward pass first needs one of its values: here by a replay, which keeps all its results; in the
original by a copy of the graph.
"""

from math import ceil, sqrt

from minidl.errors import Unsuitable
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.trace import TensorId
from minidl.policies.literature.network import CONVOLUTIONS, LOSSES, PRODUCTS, SOURCES, IterationNetwork
from minidl.policies.literature.static import Static, recomputing

LEAST_BYTES = 1024 * 4  # a value counts if it is larger: more than 1,024 elements of float32
LEFT_OUT = ("batch_norm", "batch_norm_stats", *LOSSES, *SOURCES, "dropout", "cast")


class OpenAiSpeed(Static):
    """Keeps the results of convolutions and matrix products, which take long to compute, and recomputes the others."""

    name = "openai-speed"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan that keeps results of convolutions and products, and drops other recomputable maps."""
        kept = {t for k in range(network.turn) if network.op(k) in (*CONVOLUTIONS, *PRODUCTS)
                for t in network.trace.calls[k].outputs}
        return recomputing(network, kept)


class OpenAiMemory(Static):
    """Keeps about sqrt(N) values that cut the network in two, and recomputes the others."""

    name = "openai-memory"

    def choose(self, network: IterationNetwork, costs: Costs, limits: Limits) -> Plan:
        """Return the plan that drops all maps that can be recomputed, except for the checkpoints.
        Raises Unsuitable if no value cuts the network in two."""
        return recomputing(network, set(checkpoints(network)))


def checkpoints(network: IterationNetwork) -> list[TensorId]:
    """Return the values that memory mode keeps. Raises Unsuitable if no value cuts the network."""
    every = frozenset(t for t, k in network.made.items() if network.op(k) not in LEFT_OUT
                      and network.trace.tensors[t].nbytes > LEAST_BYTES)
    wanted = every & {m.tensor_id for m in network.maps}
    root = sqrt(len(wanted))
    cuts = [t for t in network.articulations(every) if t in wanted]
    if len(cuts) < root:
        cuts = network.articulations(every)
    if not cuts:
        raise Unsuitable("policy 'openai-memory' finds no value that cuts this network in two")
    return cuts if len(cuts) <= ceil(root) else cuts[ceil(len(cuts) / root)::ceil(len(cuts) / root)]
