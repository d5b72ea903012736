"""The best choice of modes for a small trace as a mixed-integer program, in the model of ``planning.schedule``:

    steps      the program's calls in order, and before each call k the replays of earlier calls that it may need, in
               program order; a replay runs if a step that reads its outputs then misses one.
    modes      in every gap between two accesses the tensor is kept, swapped or dropped.
    residency  a variable for each step of a gap, 1 while the tensor is on the device: it changes from 0 to 1 once, and
               stays 1 until the gap ends. For a swapped tensor it changes when the swap-in is issued, for a dropped one
               with the replay. A tensor that only replays read stays until the last of these replays.
    memory     residents + outputs - donated inputs + tensors still being copied out <= budget.
    links      one copy at a time in each direction. Copies out queue in the order of their calls. A step that uses
               their memory waits for them, as do the swap-ins issued with it. Swap-ins come in any order.
    objective  the end of the last step; a call may take any algorithm whose workspace is free.

``simulate`` follows rules: a swap-in starts as late as it can be hidden, a call takes the fastest algorithm that fits.
Here all alternatives are open, so no choice and no rule does better in this model, and the solver proves it. The
residency and replay variables are Checkmate's (Jain et al., MLSys 2020). Here time is continuous, so that copies can
queue.

Not in the model, as in ``simulate``: addresses; tensors from before the iteration (they stay); donations of tensors
used again at once; evictions after a tensor's last access, while it is kept for lineage alone. So an engine may be
slower or faster than the optimum.
"""

from dataclasses import dataclass, replace

import numpy as np

from minidl.planning.problem import DROP, KEEP, SWAP
from minidl.policies.literature.exact.execution_order import ExecutionOrder
from minidl.policies.literature.exact.occupancy import Occupancy

GAP = 1e-5      # relative distance between a solution and the bound at which it counts as proven
FIRST_HORIZON = 1.3  # first horizon, in unmanaged iterations
NEXT_HORIZON = 2.0  # factor from one horizon to the next


@dataclass(frozen=True)
class Optimum:
    """The best modes, and the calls before which swap-ins start (-1: on demand); ``mode`` None: no plan found.
    ``seconds``: end of the iteration; ``bound``: no plan takes less. ``proven``: both agree, or it is proven that
    none fits."""

    seconds: float
    bound: float
    mode: np.ndarray | None
    prefetch_at: np.ndarray
    proven: bool


class Formulation(Occupancy):
    """The integer program for one trace, budget and horizon: the seconds within which the iteration must end.

    Its unit of time is the horizon, its unit of memory the budget. A constraint that holds only under a condition has a
    slack of one horizon (or budget) for each such condition: low=-2.0 has two.
    """

    def __init__(self, order: ExecutionOrder, budget: int, horizon: float) -> None:
        facts = order.facts
        slowest = np.maximum(facts.out_seconds, facts.in_seconds)[facts.gap_tensor]
        self.movable: list[bool] = (slowest < horizon).tolist()  # a longer copy would not end in time
        super().__init__(order, budget, horizon, movable=self.movable)
        program = self.program
        self.ready = [program.variable(high=1.0) for _ in order.steps]  # when earlier copies out have freed its memory
        self.landed = [program.variable(high=1.0) for _ in self.movable]  # end of the copy out
        self.issued = [program.variable(high=1.0) for _ in self.movable]  # start of the copy in
        self.copied: dict[int, int] = {}  # gap that may be swapped -> 1 if that needs a copy out
        self._order()
        self._copies_out()
        self._swap_ins()
        self.limit_memory()
        end = program.variable(high=1.0, cost=1.0)
        program.row([(end, 1.0), *self.ends(len(order.steps) - 1, -1.0)], low=0.0)

    def _order(self) -> None:
        """Add rows that make each step start after the end of the step before."""
        for step in self.order.steps:
            self.program.row([(self.start[step.index], 1.0), (self.ready[step.index], -1.0)], low=0.0)
            if step.index:
                self.program.row([(self.ready[step.index], 1.0), *self.ends(step.index - 1, -1.0)], low=0.0)

    def _copies_out(self) -> None:
        """Add rows for the copies out:
        they run one at a time, in the order of the calls after which they start; a tensor is copied out once."""
        program, facts = self.program, self.facts
        queued: list[tuple[int, int]] = []  # (gap, 1 if it is copied out)
        for gap in (g for g, movable in enumerate(self.movable) if movable):
            tensor = int(facts.gap_tensor[gap])
            earlier = [self.swap[g] for g, _ in queued if facts.gap_tensor[g] == tensor]
            copied = self.swap[gap]
            if earlier:
                copied = program.variable(high=1.0)
                program.row([(copied, 1.0), (self.swap[gap], -1.0), *((s, 1.0) for s in earlier)], low=0.0)
            self.copied[gap] = copied
            landed, lasts = self.landed[gap], facts.out_seconds[tensor] / self.horizon
            last = self.order.first[facts.gap_call[gap] + 1] - 1
            program.row([(landed, 1.0), *self.ends(last, -1.0), (copied, -lasts)], low=0.0)
            if queued:
                program.row([(landed, 1.0), (self.landed[queued[-1][0]], -1.0), (copied, -lasts)], low=0.0)
            queued.append((gap, copied))
            before = None
            for step in self.there[gap]:
                leaving = program.binary()  # 1 if its memory is not yet free for this step
                self.memory[step].append((leaving, self.size[tensor]))
                program.row([(self.ready[step], 1.0), (landed, -1.0), (leaving, 1.0), (copied, -1.0)], low=-1.0)
                if before is not None:
                    program.row([(before, 1.0), (leaving, -1.0)], low=0.0)
                before = leaving

    def _swap_ins(self) -> None:
        """Add rows for the swap-ins:
        one at a time, each after its tensor's residency begins and before the step that reads it."""
        program, facts, order = self.program, self.facts, self.order
        lasts = facts.in_seconds[facts.gap_tensor] / self.horizon
        for gap, copied in self.copied.items():
            there = self.there[gap]
            issued, swap, tensor = self.issued[gap], self.swap[gap], int(facts.gap_tensor[gap])
            program.row([(issued, 1.0), (self.landed[gap], -1.0), (copied, -1.0)], low=-1.0)
            for step, now in there.items():
                reads = tensor in order.inputs[order.steps[step].call]
                rise = [(now, -1.0), *([(there[step - 1], 1.0)] if step - 1 in there else [])]
                program.row([(issued, 1.0), (self.ready[step], -1.0), *rise, (swap, -1.0)], low=-2.0)
                if reads:
                    program.row([(self.start[step], 1.0), (issued, -1.0), (swap, -1.0 - lasts[gap]),
                                 (self.taken[step], -1.0)], low=-2.0)
            for other in (g for g in self.copied if g < gap):
                begin, back = facts.gap_call[[gap, other]].max(), facts.gap_next[[gap, other]].min()
                if begin < back:  # else one gap ends before the other begins
                    first = program.binary()  # 1 if this gap's swap-in comes before the other's
                    both = [(swap, -1.0), (self.swap[other], -1.0)]
                    program.row([(self.issued[other], 1.0), (issued, -1.0), (first, -1.0), *both],
                                low=lasts[gap] - 3.0)
                    program.row([(issued, 1.0), (self.issued[other], -1.0), (first, 1.0), *both],
                                low=lasts[other] - 2.0)

    def solve(self, seconds: float) -> Optimum:
        """Return the best choice that the solver finds in ``seconds``; it may be unproven."""
        solution = self.program.solve(seconds=seconds, gap=GAP)
        gaps = len(self.swap)
        mode, prefetch_at = np.full(gaps, KEEP, np.int64), np.full(gaps, -1, np.int64)
        if solution.values is None:
            return Optimum(np.inf, np.inf if solution.infeasible else 0.0, None, prefetch_at, solution.infeasible)
        chosen = solution.values > 0.5
        for gap, there in enumerate(self.there):
            if chosen[self.drop[gap]]:
                mode[gap] = DROP
            elif chosen[self.swap[gap]]:
                mode[gap] = SWAP
                step = next(self.order.steps[s] for s, now in there.items() if chosen[now])
                # A swap-in issued after replays is requested before the next call; its memory is free by then.
                replayed = chosen[self.taken[self.order.first[step.group]:step.index]].any()
                at = step.group + int(replayed)
                prefetch_at[gap] = at if at <= self.facts.gap_next[gap] else -1
        return Optimum(solution.objective * self.horizon, solution.bound * self.horizon, mode, prefetch_at,
                       solution.optimal)


def best(order: ExecutionOrder, budget: int, *, seconds: float) -> Optimum:
    """Return the best plan that the solver finds within ``budget`` bytes; ``seconds``: its time limit for each horizon.

    A shorter horizon makes an easier program, so the horizon grows until a plan ends within it. That plan is the best
    of all, because every faster one ends within the same horizon.
    """
    bound, horizon, longest = 0.0, FIRST_HORIZON * order.facts.seconds, order.longest
    while True:
        horizon = min(horizon, longest)
        found = Formulation(order, budget, horizon).solve(seconds)
        if not found.proven:
            return replace(found, bound=max(bound, found.bound))
        if found.mode is not None or horizon == longest:
            return found
        bound = horizon
        horizon *= NEXT_HORIZON
