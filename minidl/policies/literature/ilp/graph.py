"""A trace as nodes and values, for programs that decide stage by stage: one stage a node, in program order.

A node is a call, or a block of consecutive calls where a trace is too long for a solver: then what begins and ends
inside a block is part of that block, and decisions are about what crosses its borders. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidl.meta import aligned
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import WORTH_MOVING
from minidl.policies.literature.ilp.blocks import Span, Way, Work, borders, work_of


@dataclass(frozen=True)
class Value:
    """A tensor that a node makes and others read.

    uses     the nodes that access it, that which makes it first
    last     the node with which the program frees it; the number of nodes if it outlives them
    decided  whether it may leave; else it is there as long as the program wants it
    away     the stages in which alone it may be missing, first and last; None: any
    """

    tensor_id: TensorId
    nbytes: int
    uses: tuple[int, ...]
    last: int
    decided: bool
    away: tuple[int, int] | None = None

    def stays(self, stage: int) -> bool:
        """True if the tensor must be on the device in a stage in which it is live."""
        return self.away is not None and not self.away[0] <= stage <= self.away[1]

    @property
    def made(self) -> int:
        """The node that makes it."""
        return self.uses[0]

    def wanted(self, stage: int) -> bool:
        """True if it has been made before a stage, and not been freed."""
        return self.made < stage <= self.last


@dataclass(frozen=True)
class Node:
    """One stage. Values are numbers into ``Graph.values``.

    span     the calls, first and last
    inputs   values that it reads and has not made; outputs: those that it makes and others read
    ways     what carrying it out takes, fastest first; replay_ways: carrying out again what its outputs need
    sources  values that a replay reads
    latest   the last stage in which it can be replayed; -1: none
    """

    span: Span
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ways: tuple[Way, ...]
    replay_ways: tuple[Way, ...]
    sources: tuple[int, ...]
    latest: int


@dataclass(frozen=True)
class Graph:
    """``base``: per stage, bytes of what is there whatever is decided. ``blocks``: whether nodes are more than calls.
    """

    trace: Trace
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    base: tuple[int, ...]
    blocks: bool

    def remakable(self, x: int, stage: int) -> bool:
        """True if a value can be made again in a stage, if what it is made of and the program still wants is there."""
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
        """Of all nodes once, each in its fastest way."""
        return sum(node.ways[0].seconds for node in self.nodes)


def graph(trace: Trace, *, most: int) -> Graph:
    """The graph of a trace with at most so many nodes."""
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
    values = tuple(Value(t, size[t], tuple(uses[t]), node_of[freed[t]] if t in freed else len(spans),
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
    """The last stage in which each tensor can be made again, if what is decided about is there: before anything that is
    read for it is written, or ``ends``. -1: not at all."""
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
