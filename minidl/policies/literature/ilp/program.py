"""The mixed-integer program that decides which nodes are replayed in which stage, and which values stay:

    R[t, v]        node v is replayed in stage t, before node t
    S[t, x]        value x is on the device when stage t begins
    Free[t, x, k]  x is freed in stage t right after node k
    U[t, k]        bytes in use during node k in stage t: a sum of terms, not a variable
    Wait[t, x]     the maker of x is replayed in stage t although the host has a copy of x

    minimise       the seconds of all nodes that are executed
    R[t, v] <= S[t, x] + R[t, maker of x]   for every x that v reads
    S[t+1, x] <= S[t, x] + R[t, maker of x]
    R[t, maker of x] + copies of x that have ended before t <= 1 + Wait[t, x]
    U[t, k] <= budget

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020. There Free is an
integer bound by one row with a large coefficient. Here each reason to keep x has its own row, so Free is 0 or 1 if R
and S are, and the relaxation is tighter. Wait costs a copy back, since a replay uses the host's copy and waits for it.
A node may compute several values; one computed a second time is freed at once. Freed values are not kept between
stages.

``transfers`` adds copies. ``chooses`` gives R a variable for each way of a node, with its bytes (MO-SOS); otherwise a
node counts with its fastest way's seconds and its least bytes. Without ``repeats`` nothing is replayed: the program is
small, and optimal if copies suffice.
"""

import numpy as np

from minidl.planning.linear_program import LinearProgram, Solution, Term
from minidl.policies.literature.ilp.blocks import Way
from minidl.policies.literature.ilp.graph import Graph
from minidl.policies.literature.ilp.schedule import StageSchedule


class IntegerProgram:
    """The integer program for one graph and budget.
    Its unit of time is the graph's seconds, its unit of memory the budget. chooses: if True, it picks a way of each
    node; else a node has the seconds of its fastest way and its least bytes. repeats: if False, nothing is replayed.

    repeat     (stage, node) -> the variable of that replay
    keep       (stage, value) -> the variable that keeps the value, for decided values
    held       per stage: terms of the bytes in use when it begins; transfers adds to them
    copied     (stage, value) -> variables of copies out that have ended when that stage begins
    arrives    (stage, value) -> variables of copies that bring a value before that stage begins
    fetching   value -> the seconds of its copy back, for all values that may be copied
    surely     seconds of the nodes that have no choice
    """

    def __init__(self, graph: Graph, budget: int, *, chooses: bool = False, repeats: bool = True) -> None:
        self.graph, self.budget, self.chooses = graph, budget, chooses
        self.program = LinearProgram()
        self.size = [value.nbytes / budget for value in graph.values]
        self.stages = range(len(graph.nodes))
        self.keep: dict[tuple[int, int], int] = {}
        self.repeat: dict[tuple[int, int], int] = {}
        self.picked: dict[tuple[int, int], list[int]] = {}
        self.held: list[list[Term]] = [[] for _ in self.stages]
        self.copied: dict[tuple[int, int], list[int]] = {}
        self.arrives: dict[tuple[int, int], list[int]] = {}
        self.fetching: dict[int, float] = {}
        self.surely = 0.0
        for x, value in enumerate(graph.values):
            if value.decided:
                for stage in range(value.made + 1, min(value.last, len(self.stages) - 1) + 1):
                    self.keep[stage, x] = self.program.binary()
                    self.held[stage].append((self.keep[stage, x], self.size[x]))
                    if value.stays(stage):
                        self.program.row([(self.keep[stage, x], 1.0)], low=1.0)
        for stage in self.stages:
            for k in self._candidates(stage) if repeats else ():
                self.repeat[stage, k] = self.program.binary()

    def build(self) -> None:
        """Add all rows. Call this after ``transfers`` has added its copies."""
        for stage in self.stages:
            line = [*self._repeated(stage), stage]
            for k in line:
                self._choose(stage, k)
                self._depend(stage, k)
            self._memory(stage, line)
        for (stage, k), done in self.repeat.items():
            for x in self._made(k):
                if copies := self.copied.get((stage, x)):
                    waits = self.program.variable(high=1.0, cost=self.fetching[x] / self.graph.seconds)
                    self.program.row([(done, 1.0), *((v, 1.0) for v in copies), (waits, -1.0)], high=1.0)
        for (stage, x), kept in self.keep.items():
            maker = self.graph.values[x].made
            if not self.graph.remakable(x, stage):  # until it is freed, it must be on the device or the host
                self.program.row([(kept, 1.0), *((v, 1.0) for v in self.copied.get((stage, x), ()))], low=1.0)
            if stage == maker + 1:
                continue
            sources: list[Term] = [(v, -1.0) for v in self.arrives.get((stage, x), ())]
            if (before := self.keep.get((stage - 1, x))) is not None:
                sources.append((before, -1.0))
            if (made := self.repeat.get((stage - 1, maker))) is not None:
                sources.append((made, -1.0))
            self.program.row([(kept, 1.0), *sources], high=0.0)

    def _candidates(self, stage: int) -> list[int]:
        """Return the nodes that this stage may replay: makers of values that may be absent, and of their sources."""
        graph = self.graph
        missing = [x for x, value in enumerate(graph.values)
                   if value.decided and value.wanted(stage) and any(use >= stage for use in value.uses)]
        found: set[int] = set()
        while missing:
            k = graph.values[missing.pop()].made
            if k in found or stage > graph.nodes[k].latest:
                continue
            found.add(k)
            missing += [y for y in graph.nodes[k].sources if graph.values[y].decided]
        return sorted(found)

    def _repeated(self, stage: int) -> list[int]:
        return [k for k in range(stage) if (stage, k) in self.repeat]

    def _reads(self, stage: int, k: int) -> tuple[int, ...]:
        node = self.graph.nodes[k]
        return tuple(x for x in (node.inputs if k == stage else node.sources) if self.graph.values[x].decided)

    def ways(self, stage: int, k: int) -> tuple[Way, ...]:
        """Return the ways of a node: as the stage's own node, or as a replay."""
        node = self.graph.nodes[k]
        return node.ways if k == stage else node.replay_ways

    def _choose(self, stage: int, k: int) -> None:
        """Add the seconds of node k in a stage to the objective, and variables for the choice of its algorithms."""
        ways, done = self.ways(stage, k), self.repeat.get((stage, k))
        if not self.chooses or len(ways) == 1:
            if done is not None:
                self.program.price(done, ways[0].seconds / self.graph.seconds)
            else:
                self.surely += ways[0].seconds
            return
        picked = [self.program.variable(high=1.0, integer=True, cost=way.seconds / self.graph.seconds) for way in ways]
        self.picked[stage, k] = picked
        once = 1.0 if done is None else 0.0
        self.program.row([*((p, 1.0) for p in picked), *([] if done is None else [(done, -1.0)])], low=once, high=once)

    def _depend(self, stage: int, k: int) -> None:
        """Require that each input of a node is on the device or replayed before it."""
        done = self.repeat.get((stage, k))
        for x in self._reads(stage, k):
            sources: list[Term] = []
            if (kept := self.keep.get((stage, x))) is not None:
                sources.append((kept, 1.0))
            if (made := self.repeat.get((stage, self.graph.values[x].made))) is not None:
                sources.append((made, 1.0))
            if done is None:
                self.program.row(sources, low=1.0)
            else:
                self.program.row([*sources, (done, -1.0)], low=0.0)

    def _memory(self, stage: int, line: list[int]) -> None:
        """Add rows by which the bytes in use during each node of a stage stay within the budget.
        line: the stage's nodes."""
        graph, program = self.graph, self.program
        readers: dict[int, list[int]] = {}
        for k in line:
            for x in {*self._reads(stage, k), *self._made(k)}:
                readers.setdefault(x, []).append(k)
        used, base = list(self.held[stage]), graph.base[stage] / self.budget
        program.row(used, high=1.0 - base)
        for k in line:
            done = self.repeat.get((stage, k))
            made = sum(self.size[x] for x in self._made(k))
            if done is None:
                base += made
            else:
                used.append((done, made))
            program.row([*used, *self._beyond(stage, k)], high=1.0 - base - self._surely(stage, k))
            for x in {*self._reads(stage, k), *self._made(k)}:
                if (freed := self._freed(stage, x, k, readers[x])) is not None:
                    used.append((freed, -self.size[x]))
                kept = self.keep.get((stage, x))
                if done is not None and kept is not None and x in self._made(k):  # recomputed while it is on the device
                    twice = program.variable(high=1.0)
                    program.row([(twice, 1.0), (done, -1.0)], high=0.0)
                    program.row([(twice, 1.0), (kept, -1.0)], high=0.0)
                    used.append((twice, -self.size[x]))

    def _made(self, k: int) -> list[int]:
        return [x for x in self.graph.nodes[k].outputs if self.graph.values[x].decided]

    def _beyond(self, stage: int, k: int) -> list[Term]:
        """Return the terms of a node's bytes, without its operands, that depend on a variable."""
        picked, ways = self.picked.get((stage, k)), self.ways(stage, k)
        if picked is not None:
            return [(p, way.nbytes / self.budget) for p, way in zip(picked, ways, strict=True)]
        done = self.repeat.get((stage, k))
        return [] if done is None else [(done, ways[-1].nbytes / self.budget)]

    def _surely(self, stage: int, k: int) -> float:
        """Return the part of a node's bytes, without its operands and in budgets, that no variable affects."""
        return self.ways(stage, k)[-1].nbytes / self.budget if k == stage and (stage, k) not in self.picked else 0.0

    def _freed(self, stage: int, x: int, k: int, readers: list[int]) -> int | None:
        """Return a variable that is 1 if a value is freed right after node k; None if it cannot be.
        The variable is 0 if a later node of the stage reads the value, or the next stage keeps it."""
        if k != stage and stage in readers:
            return None
        program = self.program
        freed = program.variable(high=1.0)
        if (done := self.repeat.get((stage, k))) is not None:
            program.row([(freed, 1.0), (done, -1.0)], high=0.0)
        reasons = [self.repeat[stage, j] for j in readers if j > k]
        if (kept := self.keep.get((stage + 1, x))) is not None:
            reasons.append(kept)
        for reason in reasons:
            program.row([(freed, 1.0), (reason, 1.0)], high=1.0)
        return freed

    def read(self, solution: Solution) -> StageSchedule:
        """Return the schedule that a solution describes."""
        assert solution.values is not None
        chosen: np.ndarray = solution.values > 0.5
        repeats = tuple(tuple(k for k in self._repeated(stage) if chosen[self.repeat[stage, k]])
                        for stage in self.stages)
        resident = tuple(frozenset(x for x in range(len(self.size)) if (stage, x) in self.keep
                                   and chosen[self.keep[stage, x]]) for stage in self.stages)
        ways = {key: int(np.argmax(solution.values[picked])) for key, picked in self.picked.items()
                if key[0] == key[1] or chosen[self.repeat[key]]}
        if self.chooses:
            ways |= {(stage, k): 0 for stage in self.stages for k in (*repeats[stage], stage)
                     if len(self.ways(stage, k)) == 1}
        return StageSchedule(repeats, resident, ways=ways)
