"""The memory side of the mixed-integer program of ``formulation``: modes, residencies, replays, and each step's bytes.

Its unit of memory is the budget, so that all coefficients are near 1. ``formulation`` adds the links' constraints.
"""

from minidl.planning.linear_program import LinearProgram, Term
from minidl.policies.literature.exact.execution_order import ExecutionOrder, ExecutionStep


class Occupancy:
    """Variables and constraints of the integer program for the tensors on the device at each step.
    movable: per gap, True if its tensor may be swapped. horizon: the seconds within which the iteration must end.

    swap, drop  per gap: its mode (neither: kept)
    there       per gap: step -> 1 if its tensor has bytes on the device then
    taken       per step: 1 if it is executed; always 1 for a call of the program
    start       per step: when it begins, in horizons; seconds: the terms of its duration, in horizons
    memory      per step: the terms of the bytes in use; others may add terms before ``limit_memory``
    """

    def __init__(self, order: ExecutionOrder, budget: int, horizon: float, *, movable: list[bool]) -> None:
        self.order, self.facts = order, order.facts
        self.budget, self.horizon = budget, horizon
        self.size = order.facts.size / budget
        self.program = program = LinearProgram()
        gaps, steps = range(len(movable)), order.steps
        self.swap = [program.binary(high=float(movable[g])) for g in gaps]
        self.drop = [program.binary(high=float(self.facts.can_drop[g])) for g in gaps]
        self.taken = [program.variable(low=1.0, high=1.0) if s.call == s.group else program.binary() for s in steps]
        self.start = [program.variable(high=1.0) for _ in steps]
        self.there: list[dict[int, int]] = []
        self.memory: list[list[Term]] = [[] for _ in steps]
        self.seconds: list[list[Term]] = []
        for step in steps:
            self._algorithms(step)
        for gap in gaps:
            self._modes(gap)
        for k in range(order.calls):
            self._replays(k)

    def limit_memory(self) -> None:
        """Add rows by which no step uses more than the budget."""
        for step in self.order.steps:
            self._working_set(step)

    def ends(self, step: int, sign: float = 1.0) -> list[Term]:
        """Return the terms of a linear expression for a step's end, multiplied by ``sign``."""
        return [(self.start[step], sign), *((v, sign * c) for v, c in self.seconds[step])]

    def _algorithms(self, step: ExecutionStep) -> None:
        facts, program = self.facts, self.program
        choices = range(facts.algorithm_ptr[step.call], facts.algorithm_ptr[step.call + 1])
        seconds = facts.algorithm_seconds / self.horizon
        if len(choices) == 1:
            self.seconds.append([(self.taken[step.index], seconds[choices[0]])])
            return
        picked = [program.binary() for _ in choices]
        program.row([*((p, 1.0) for p in picked), (self.taken[step.index], -1.0)], low=0.0, high=0.0)
        self.seconds.append([(p, seconds[a]) for p, a in zip(picked, choices, strict=True)])
        # The last algorithm is always possible; its workspace, if any, is not part of the model.
        self.memory[step.index] += [(p, facts.algorithm_bytes[a] / self.budget)
                                    for p, a in zip(picked[:-1], choices, strict=False)]

    def _modes(self, gap: int) -> None:
        """Add the variables for the mode of one gap and for its tensor's residency."""
        program, order = self.program, self.order
        tensor, made = int(self.facts.gap_tensor[gap]), int(self.facts.produced[self.facts.gap_tensor[gap]])
        begin, back = int(self.facts.gap_call[gap]), int(self.facts.gap_next[gap])
        swap, drop = self.swap[gap], self.drop[gap]
        program.row([(swap, 1.0), (drop, 1.0)], high=1.0)
        inside = [s for s in order.steps[order.first[begin + 1]:] if s.group <= back and (
            s.group < back or s.call <= back)]
        there = {s.index: program.binary() for s in inside}
        self.there.append(there)
        initial = there[inside[0].index]
        program.row([(initial, 1.0), (swap, 1.0), (drop, 1.0)], low=1.0)
        program.row([(initial, 1.0), (drop, 1.0)], high=1.0)
        program.row([(there[inside[-1].index], 1.0)], low=1.0)
        for before, step in zip(inside, inside[1:], strict=False):
            rise: list[Term] = [(there[step.index], 1.0), (there[before.index], -1.0)]
            program.row(rise, low=0.0)
            if before.call == made:  # a replay just before returns a dropped tensor, not a swapped one
                program.row([*rise, (swap, 1.0)], high=1.0)
                rise.append((self.taken[before.index], -1.0))
                program.row([(there[step.index], 1.0), (self.taken[before.index], -1.0), (swap, 1.0)], low=0.0)
            program.row([*rise, (swap, -1.0)], high=0.0)
        for step in inside:
            if tensor in order.inputs[step.call]:
                program.row([(there[step.index], 1.0), (self.taken[step.index], -1.0)], low=0.0)
            self.memory[step.index].append((there[step.index], self.size[tensor]))

    def _replays(self, k: int) -> None:
        """Add a variable for each replay before call k, and the memory of tensors that only these replays read: from
        their own replay to the last one that reads them."""
        program, order = self.program, self.order
        group = [s for s in order.steps[order.first[k]:] if s.group == k]
        step_of = {s.call: s.index for s in group}
        held: dict[tuple[int, int], int] = {}  # (tensor, step) -> 1 while a later replay reads it
        for step in group[:-1]:
            readers = [s for s in group if set(order.outputs[step.call]) & set(order.inputs[s.call])]
            # Replays are lazy: a tensor is recomputed only if a step of this group reads it.
            program.row([(self.taken[step.index], 1.0), *((self.taken[s.index], -1.0) for s in readers)], high=0.0)
            for tensor in order.inputs[step.call]:
                if order.absent(tensor, k):  # no replay is possible if it needs a freed leaf
                    maker = step_of.get(int(self.facts.produced[tensor]))
                    source = [] if maker is None else [(self.taken[maker], -1.0)]
                    program.row([(self.taken[step.index], 1.0), *source], high=0.0)
            for tensor in order.outputs[step.call]:
                if not order.absent(tensor, k):
                    continue
                later: int | None = None
                for reader in reversed([s for s in group[:-1] if s.index > step.index]):
                    reads = tensor in order.inputs[reader.call]
                    if later is None and not reads:
                        continue
                    now = held[tensor, reader.index] = program.variable(high=1.0)
                    if reads:
                        program.row([(now, 1.0), (self.taken[reader.index], -1.0)], low=0.0)
                    if later is not None:
                        program.row([(now, 1.0), (later, -1.0)], low=0.0)
                    self.memory[reader.index].append((now, self.size[tensor]))
                    later = now
        for step in group[:-1]:
            self._written_over(step, held)

    def _written_over(self, step: ExecutionStep, held: dict[tuple[int, int], int]) -> None:
        """Add terms by which a replay that is the last to read an input donates it to its output."""
        given = []
        for output, source in self._pairs(step.call):
            if (source, step.index) in held:
                now = self.program.variable(high=1.0)
                self.program.row([(now, 1.0), (self.taken[step.index], -1.0)], high=0.0)
                later = held.get((source, step.index + 1))
                if later is not None:
                    self.program.row([(now, 1.0), (later, 1.0)], high=1.0)
                given.append((now, output))
        self._give(step, given)

    def _pairs(self, call: int) -> list[tuple[int, int]]:
        facts = self.facts
        return [(int(facts.may_out[j]), int(facts.may_in[j])) for j in
                range(facts.may_ptr[call], facts.may_ptr[call + 1])]

    def _give(self, step: ExecutionStep, given: list[tuple[int, int]]) -> None:
        if given:
            self.program.row([(now, 1.0) for now, _ in given], high=1.0)  # one donation a call
            self.memory[step.index] += [(now, -self.size[output]) for now, output in given]

    def _working_set(self, step: ExecutionStep) -> None:
        """Add the row by which the bytes in use during one step stay within the budget."""
        facts, order, k = self.facts, self.order, step.group
        outputs = sum(self.size[t] for t in order.outputs[step.call])
        base = sum(self.size[t] for t in range(len(facts.size)) if facts.produced[t] < k <= order.dies[t]
                   and (t, k) not in order.gap_at)
        self.memory[step.index].append((self.taken[step.index], outputs))
        if step.call == k:
            given = []
            for output, source in self._pairs(k):
                following = self.order.gap_at.get((source, k + 1))
                if order.dies[source] == k:
                    given.append((self.program.variable(high=1.0), output))
                elif following is not None and facts.gap_call[following] == k:
                    given.append((self.program.variable(high=1.0), output))
                    self.program.row([(given[-1][0], 1.0), (self.drop[following], -1.0)], high=0.0)
            self._give(step, given)
        self.program.row(self.memory[step.index], high=1.0 - base)
