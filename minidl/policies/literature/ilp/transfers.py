"""Copies between device and host in a program of stages: one copy out of each value, and any number back.

    O[a, x]  the copy out of x starts after node a, which has just used x
    P[t, x]  a copy back of x ends when stage t begins

    sum over a of O[a, x] <= 1: the host keeps its copy as a backup
    P[t, x] <= sum of the O[a, x] whose copies have ended before it starts
    in each stage at most one copy out and one copy back run. Nothing waits for them: they take whole stages, as many
    as their seconds need if every node takes its fastest way

Wen et al., "A Swap Dominated Tensor Re-generation Strategy for Training Deep Learning Models", IPDPS 2022, as described
by Wei et al., "Memory Optimization Algorithm for Convolutional Neural Networks with Operator Selection" (MO-SOS), 2024.
A value counts as on the device during its copy out and during its copy back.
"""

from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import accumulate

from minidl.plan.costs import Costs
from minidl.planning.linear_program import Solution
from minidl.policies.literature.ilp.program import IntegerProgram
from minidl.policies.literature.ilp.schedule import Fetch, ScheduledCopy, StageSchedule

LEAST_COST = 1e-7  # cost of a copy, in iterations, so that none is made without need


class Transfers:
    """The variables of all copies that a program may make. Create it before ``IntegerProgram.build``."""

    def __init__(self, program: IntegerProgram, costs: Costs) -> None:
        self.program, self.costs = program, costs
        graph = program.graph
        self.starts = [0.0, *accumulate(node.ways[0].seconds for node in graph.nodes)]
        self.out: dict[tuple[int, int], tuple[int, int]] = {}  # (node, value) -> variable, the stage when it has ended
        self.back: dict[tuple[int, int], tuple[int, int]] = {}  # (stage, value) -> variable, the stage when it starts
        self.leaving: list[list[int]] = [[] for _ in program.stages]
        self.coming: list[list[int]] = [[] for _ in program.stages]
        for x, value in enumerate(graph.values):
            if value.decided:
                self._value(x)
        for under_way in (*self.leaving, *self.coming):
            if len(under_way) > 1:
                program.program.row([(v, 1.0) for v in under_way], high=1.0)

    def _value(self, x: int) -> None:
        value, program = self.program.graph.values[x], self.program.program
        out_seconds, in_seconds = (self.costs.latency_seconds + value.nbytes * rate for rate in
                                   (self.costs.out_seconds_per_byte, self.costs.in_seconds_per_byte))
        self.program.fetching[x] = in_seconds
        copies: list[tuple[int, int]] = []  # variable, the stage when it has ended
        for a, b in zip(value.uses, value.uses[1:], strict=False):
            ended = self._after(a + 1, out_seconds)
            if ended < b and self._before(b, in_seconds) >= ended:
                copies.append((self._copy(x, a, ended), ended))
            for stage in range(a + 2, b + 1):
                begins = self._before(stage, in_seconds)
                sources = [copy for copy, end in copies if end <= begins]
                if not sources or begins <= a:
                    continue
                fetch = program.binary()
                program.price(fetch, LEAST_COST)
                program.row([(fetch, 1.0), *((copy, -1.0) for copy in sources)], high=0.0)
                self.back[stage, x] = fetch, begins
                self.program.arrives.setdefault((stage, x), []).append(fetch)
                for during in range(begins, stage):
                    self.coming[during].append(fetch)
                    self.program.held[during].append((fetch, self.program.size[x]))
        if len(copies) > 1:
            program.row([(copy, 1.0) for copy, _ in copies], high=1.0)

    def _copy(self, x: int, a: int, ended: int) -> int:
        """Add a copy out after node a: the value stays on the device until the copy has ended, and leaves then."""
        program, keep = self.program.program, self.program.keep
        copy = program.binary()
        program.price(copy, LEAST_COST)
        self.out[a, x] = copy, ended
        for stage in range(a + 1, ended):
            self.leaving[stage].append(copy)
            program.row([(keep[stage, x], 1.0), (copy, -1.0)], low=0.0)
        program.row([(keep[ended, x], 1.0), (copy, 1.0)], high=1.0)
        for stage in range(ended, self.program.graph.values[x].last + 1):
            self.program.copied.setdefault((stage, x), []).append(copy)
        return copy

    def _after(self, stage: int, seconds: float) -> int:
        """Return the first stage that begins after a copy of ``seconds`` that starts with ``stage`` has ended."""
        return max(stage + 1, bisect_left(self.starts, self.starts[stage] + seconds - 1e-12))

    def _before(self, stage: int, seconds: float) -> int:
        """Return the last stage in which a copy can start to end before ``stage``; -1: none."""
        return min(stage - 1, bisect_right(self.starts, self.starts[stage] - seconds + 1e-12) - 1)

    def read(self, solution: Solution, schedule: StageSchedule) -> StageSchedule:
        """Add a solution's copies to the schedule, but no copies back of values that are present or not kept after it.
        A solver that stops short of its optimum leaves such copies, which waste memory."""
        values = solution.values
        assert values is not None
        copies = {x: ScheduledCopy(a, ended, self.program.fetching[x]) for (a, x), (v, ended) in self.out.items()
                  if values[v] > 0.5}
        there = schedule.resident
        fetches = tuple(sorted((Fetch(x, begins, stage) for (stage, x), (v, begins) in self.back.items()
                                if values[v] > 0.5 and x in there[stage] and x not in there[stage - 1]),
                               key=lambda f: (f.starts, f.lands, f.value)))
        return replace(schedule, copies=copies, fetches=fetches)
