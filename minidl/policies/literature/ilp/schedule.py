"""The decisions of an integer program for its stages, as data, and their cost. This module calls no solver.

In each stage t, some earlier nodes are replayed in order, before node t itself; between two stages some values are on
the device. ``judge`` checks and costs a schedule by rules of its own, independent of the program.
"""

from dataclasses import dataclass, field

from minidl.policies.literature.ilp.blocks import Way
from minidl.policies.literature.ilp.graph import Graph


@dataclass(frozen=True)
class ScheduledCopy:
    """A copy out of a value, from the end of node ``after`` until before stage ``ended``.
    ``back``: seconds of a copy back."""

    after: int
    ended: int
    back: float = 0.0


@dataclass(frozen=True)
class Fetch:
    """A copy of a value back to the device, which starts with stage ``starts`` and ends before stage ``lands``."""

    value: int
    starts: int
    lands: int


@dataclass(frozen=True)
class StageSchedule:
    """The decisions for all stages. Stage t runs node t (a call, or a block of calls), after replays of earlier nodes.

    repeats   per stage: the nodes that are replayed, ascending
    resident  per stage: the values on the device when it begins, of those that may leave
    copies    value -> its only copy to the host
    fetches   the copies back to the device
    ways      (stage, node) -> index in the node's ways (or replay_ways); no entry: the fastest whose workspace is free
    """

    repeats: tuple[tuple[int, ...], ...]
    resident: tuple[frozenset[int], ...]
    copies: dict[int, ScheduledCopy] = field(default_factory=dict)
    fetches: tuple[Fetch, ...] = ()
    ways: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The cost of a schedule: seconds, peak bytes and each node's algorithms; ``wrong``:
    its first mistake as text, "" if none."""

    seconds: float
    most_bytes: int
    ways: dict[tuple[int, int], Way]
    wrong: str = ""


def judge(graph: Graph, schedule: StageSchedule, budget: int) -> Verdict:
    """Return the cost and the first mistake of a schedule within a budget of bytes."""
    seconds, most = 0.0, 0
    ways: dict[tuple[int, int], Way] = {}
    size = [value.nbytes for value in graph.values]
    flying: dict[int, list[int]] = {}
    landed: dict[int, set[int]] = {}
    for fetch in schedule.fetches:
        landed.setdefault(fetch.lands, set()).add(fetch.value)
        for stage in range(fetch.starts, fetch.lands):
            flying.setdefault(stage, []).append(fetch.value)
        copy = schedule.copies.get(fetch.value)
        if copy is None or copy.ended > fetch.starts:
            return Verdict(seconds, most, ways, f"value {fetch.value} is fetched before there is a copy")
    there: set[int] = set()
    for stage in range(len(graph.nodes)):
        here = set(schedule.resident[stage])
        if not here <= there | landed.get(stage, set()):
            return Verdict(seconds, most, ways, f"stage {stage} begins with values that are not there")
        live = graph.base[stage] + sum(size[x] for x in here) + sum(size[x] for x in flying.get(stage, ()))
        most = max(most, live)
        after = schedule.resident[stage + 1] if stage + 1 < len(graph.nodes) else frozenset()
        line = [*schedule.repeats[stage], stage]
        for place, k in enumerate(line):
            each = graph.nodes[k]
            own = k == stage
            reads, options = (each.inputs, each.ways) if own else (each.sources, each.replay_ways)
            missing = [x for x in reads if x not in here and (graph.values[x].decided
                                                              or not graph.values[x].wanted(stage))]
            if missing or not own and stage > each.latest:
                return Verdict(seconds, most, ways, f"stage {stage}: node {k} cannot be carried out")
            made = [x for x in each.outputs if graph.values[x].decided]
            for x in () if own else made:  # a replay uses the host's copy, and waits for it
                copy = schedule.copies.get(x)
                if copy is not None and copy.ended <= stage <= graph.values[x].last:
                    seconds += copy.back
            live += sum(size[x] for x in made)
            number = schedule.ways.get((stage, k))
            fitting = [way for way in options if live + way.nbytes <= budget]
            way = options[number] if number is not None else fitting[0] if fitting else options[-1]
            ways[stage, k] = way
            seconds += way.seconds
            most = max(most, live + way.nbytes)
            again = here.intersection(made)  # computed a second time; these bytes are freed at once
            live -= sum(size[x] for x in again)
            here.update(made)
            later = {x for j in line[place + 1:] for x in _reads(graph, j, stage)}
            gone = {x for x in here if x not in later and x not in after}
            live -= sum(size[x] for x in gone)
            here -= gone
        there = here
        if most > budget:
            return Verdict(seconds, most, ways, f"stage {stage} takes {most} bytes")
    return Verdict(seconds, most, ways)


def _reads(graph: Graph, k: int, stage: int) -> tuple[int, ...]:
    return graph.nodes[k].inputs if k == stage else graph.nodes[k].sources
