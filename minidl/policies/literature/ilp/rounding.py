"""Checkmate's approximation: the linear relaxation of its program, rounded in two phases.

    first   S[t, x], value x is on the device when stage t begins, is 1 if it is at least 1/2 in the relaxation
    second  R[t, v], node v is replayed in stage t, follows: the fewest replays that S and the nodes' inputs need

A rounded schedule may exceed the budget. So the relaxation is solved for several shares of the budget, and the fastest
rounded schedule that fits the whole budget is taken (Jain et al., MLSys 2020, section 5).
"""

from minidl.policies.literature.ilp.graph import Graph
from minidl.policies.literature.ilp.program import IntegerProgram
from minidl.policies.literature.ilp.schedule import StageSchedule, judge

SHARES = (1.0, 0.95, 0.9, 0.8, 0.7)  # of the budget
HALF = 0.5


def rounded(graph: Graph, budget: int, *, seconds: float) -> StageSchedule | None:
    """Return the fastest rounded schedule that fits, or None. ``seconds`` is the time limit of each relaxation."""
    best: tuple[float, StageSchedule] | None = None
    for share in SHARES:
        program = IntegerProgram(graph, int(share * budget))
        program.build()
        solution = program.program.solve(seconds=seconds, relaxed=True)
        if solution.values is None:
            break  # a smaller share has no solution either
        kept = {key for key, variable in program.keep.items() if solution.values[variable] >= HALF - 1e-9}
        schedule = completed(graph, kept)
        verdict = judge(graph, schedule, budget)
        if not verdict.wrong and (best is None or verdict.seconds < best[0]):
            best = verdict.seconds, schedule
    return None if best is None else best[1]


def completed(graph: Graph, kept: set[tuple[int, int]]) -> StageSchedule:
    """Return the schedule that keeps certain values, with the fewest replays that the nodes' inputs then need.
    kept: pairs (stage, value)."""
    stages = len(graph.nodes)
    resident: list[set[int]] = [set() for _ in range(stages + 1)]
    for stage, x in kept:
        resident[stage].add(x)
    repeats: list[tuple[int, ...]] = []
    for stage in range(stages):
        here = resident[stage]
        wanted = [x for x in graph.nodes[stage].inputs if graph.values[x].decided and x not in here]
        wanted += [x for x in resident[stage + 1] if x not in here and graph.values[x].made < stage]
        found: set[int] = set()
        while wanted:
            k = graph.values[wanted.pop()].made
            if k not in found:
                found.add(k)
                wanted += [y for y in graph.nodes[k].sources if graph.values[y].decided and y not in here]
        repeats.append(tuple(sorted(found)))
    return StageSchedule(tuple(repeats), tuple(frozenset(each) for each in resident[:stages]))
