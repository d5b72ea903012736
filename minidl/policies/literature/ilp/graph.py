"""A trace as a graph of nodes and values, for integer programs with one stage per node, in program order.

A node is a call. If a trace is too long for a solver, a node is a block of consecutive calls; then tensors that live
within one block are part of it, and decisions are about tensors that live across blocks. This module decides nothing.
"""

from dataclasses import dataclass

from minidl.meta import aligned
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import WORTH_MOVING
from minidl.policies.literature.ilp.blocks import CallRange, Way, Work, borders, work_of


@dataclass(frozen=True)
class GraphValue:
    """A tensor that one node computes and others read.

    uses     the nodes that access it; the first one computes it
    last     the node in which the program frees it; the number of nodes if it outlives them
    decided  True if the integer program may evict it; else it stays until the program frees it
    away     (first, last) stage in which it may be absent; None: any stage
    """

    tensor_id: TensorId
    nbytes: int
    uses: tuple[int, ...]
    last: int
    decided: bool
    away: tuple[int, int] | None = None

    def stays(self, stage: int) -> bool:
        """Return True if the value, once computed and until it is freed, must be on the device in this stage."""
        return self.away is not None and not self.away[0] <= stage <= self.away[1]

    @property
    def made(self) -> int:
        """The node that computes the value."""
        return self.uses[0]

    def wanted(self, stage: int) -> bool:
        """Return True if the value is computed before this stage and not freed before it."""
        return self.made < stage <= self.last


@dataclass(frozen=True)
class Node:
    """One call or block of calls, and the stage that runs it. Values are given as indices into ``Graph.values``.

    span     the calls, first and last
    inputs   values that the node reads from other nodes; outputs: values that it computes and others read
    ways     the choices of algorithms, fastest first; replay_ways: the same for replaying its outputs
    sources  values that a replay reads
    latest   the last stage in which it can be replayed; -1: none
    """

    span: CallRange
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ways: tuple[Way, ...]
    replay_ways: tuple[Way, ...]
    sources: tuple[int, ...]
    latest: int


@dataclass(frozen=True)
class Graph:
    """A trace's nodes and values. ``base``: per stage, the bytes of tensors that stay on the device.
    ``blocks``: True if nodes are blocks of calls."""

    trace: Trace
    nodes: tuple[Node, ...]
    values: tuple[GraphValue, ...]
    base: tuple[int, ...]
    blocks: bool

    def remakable(self, x: int, stage: int) -> bool:
        """Return True if a value can be recomputed in a stage, if the values that are live there are available."""
        todo, seen = [self.values[x].made], set()
        while todo:
            k = todo.pop()
            if stage > self.nodes[k].latest:
                return False
            if k not in seen:
                seen.add(k)
                todo += [self.values[y].made for y in self.nodes[k].sources
                         if self.values[y].decided and not self.values[y].wanted(stage)]
        return True

    @property
    def seconds(self) -> float:
        """The seconds of all nodes once, each in its fastest way."""
        return sum(node.ways[0].seconds for node in self.nodes)


def graph(trace: Trace, *, most: int) -> Graph:
    """Return the graph of a trace with at most ``most`` nodes."""
    spans = borders(trace, most=most)
    node_of = [n for n, span in enumerate(spans) for _ in range(span.first, span.last + 1)]
    uses: dict[TensorId, list[int]] = {t: [] for t in trace.tensors}
    made: dict[TensorId, int] = {}
    freed: dict[TensorId, int] = {}
    for k, call in enumerate(trace.calls):
        for t in dict.fromkeys((*call.inputs, *call.outputs)):
            if not uses[t] or uses[t][-1] != node_of[k]:
                uses[t].append(node_of[k])
        made.update(dict.fromkeys(call.outputs, k))
        freed.update(dict.fromkeys(call.frees, k))
    size = {t: aligned(tensor.nbytes) for t, tensor in trace.tensors.items()}
    least = WORTH_MOVING * sum(size.values())
    crossing = [t for t in made if freed.get(t, len(trace.calls)) > spans[node_of[made[t]]].last]
    number = {t: n for n, t in enumerate(crossing)}
    written = {t for call in trace.calls for t in call.writes}
    windows = trace.windows
    away = {t: (node_of[after] + 1, node_of[until]) for t, (after, until) in (windows or {}).items()}
    values = tuple(GraphValue(t, size[t], tuple(uses[t]), node_of[freed[t]] if t in freed else len(spans),
                         size[t] >= least and t in freed and t not in written and (windows is None or t in windows),
                         away.get(t)) for t in crossing)
    stays = {t: node_of[k] for t, k in freed.items() if t not in made or t in number and not values[number[t]].decided}
    latest = _latest(trace, node_of, stays)
    nodes = []
    for span in spans:
        work = work_of(trace, span, size, {t for t in crossing if values[number[t]].decided}, freed)
        nodes.append(_node(work, number, min((latest[t] for t in work.remade), default=-1)))
    base = [0] * len(spans)
    for t in trace.tensors:
        begin = 0 if t not in made else node_of[made[t]] + 1
        if t not in number or not values[number[t]].decided:
            for stage in range(begin, (node_of[freed[t]] if t in freed else len(spans) - 1) + 1):
                if t in number or t not in made:
                    base[stage] += size[t]
    return Graph(trace, tuple(nodes), values, tuple(base), len(spans) < len(trace.calls))


def _node(work: Work, number: dict[TensorId, int], latest: int) -> Node:
    return Node(work.span, tuple(number[t] for t in work.inputs if t in number),
                tuple(number[t] for t in work.outputs if t in number), work.ways, work.replay_ways,
                tuple(number[t] for t in work.sources if t in number), latest if work.replay_ways else -1)


def _latest(trace: Trace, node_of: list[int], ends: dict[TensorId, int]) -> dict[TensorId, int]:
    """Return, for each tensor, the last stage in which it can be recomputed if the decided values are there; -1: none.
    After that, an input of its call has been overwritten, or the stage in ``ends`` is over."""
    written: dict[TensorId, list[int]] = {}
    for k, call in enumerate(trace.calls):
        for t in call.writes:
            written.setdefault(t, []).append(k)
    found: dict[TensorId, int] = {}
    for k, call in enumerate(trace.calls):
        stage = len(node_of) if call.replayable and not call.writes else -1
        for source in call.inputs:
            after = [w for w in written.get(source, ()) if w > k]
            stage = min([stage, ends.get(source, stage), *(node_of[w] for w in after[:1])])
        found.update(dict.fromkeys(call.outputs, stage))
    return found
