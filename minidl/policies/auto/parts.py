"""Modes that other planners choose. Searches of ``auto`` start from some of them, so that its plan is seldom worse.

Belady's planner swaps, whenever memory is short, the tensor with the latest next use (Belady 1966, "A study of
replacement algorithms"). Chen's keeps every k-th value, or one value after a number of bytes, and recomputes the others
(Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Capuchin's are the plans of ``policies/capuchin``.
"""

import heapq
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.modes import modes_of
from minidl.planning.problem import DROP, SWAP, Array, Problem, live_bytes, problem
from minidl.policies.auto.choices import most_held
from minidl.policies.capuchin.policy import Capuchin, CapuchinRecompute

EVERY = (2, 3, 4, 6, 8, 12)             # Chen's k
MOST_PAIRS = 100_000                    # of candidates and decisions: about a third of a second of Capuchin's planner
STUCK = 0.6                             # of the budget: if more stays, gradients may leave after their last use
SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24)  # numbers of parts of equal bytes; Chen's greedy choice keeps the end of each


class Question:
    """A trace to plan for, and what other planners choose for it: each is asked once, when it is first needed.
    Each choice is handed out as a copy, because a search repairs the choices that it starts from, in place."""

    def __init__(self, trace: Trace, costs: Costs, limits: Limits) -> None:
        self.trace, self.costs, self.limits = trace, costs, limits
        self.facts = problem(trace, costs, budget=int(STUCK * limits.device_bytes))

    def again(self, trace: Trace, costs: Costs, limits: Limits) -> "Question":
        """Return this question, which keeps its answers, if it is about the same; else a new one."""
        same = (trace, costs, limits) == (self.trace, self.costs, self.limits)
        return self if same else Question(trace, costs, limits)

    def capuchins(self, most: int) -> list[Array]:
        """Return the modes of Capuchin's hybrid and recompute-only planners.
        Empty if their work, the number of candidates times the number of decisions, would exceed ``most``."""
        return [mode.copy() for mode in self._capuchins] if _pairs(self.facts, self.limits.device_bytes) <= most else []

    def by_demand(self) -> list[Array]:
        """Return the modes of policies on demand (``by_demand``)."""
        return [mode.copy() for mode in self._by_demand]

    @cached_property
    def _capuchins(self) -> list[Array]:
        lives = Lifetimes.of(self.trace)
        plans = [Plan(policy.choose(lives, self.costs, self.limits).evictions())
                 for policy in (Capuchin(), CapuchinRecompute())]
        modes = [modes_of(plan, self.facts) for plan in plans]
        for mode in modes:
            mode[(mode == DROP) & ~self.facts.may_drop] = SWAP
        return modes

    @cached_property
    def _by_demand(self) -> list[Array]:
        from minidl.policies.auto.by_demand import by_demand  # compiled code

        return list(by_demand(self.facts, self.limits))


def parts(asked: Question) -> Iterator[Array]:
    """Yield the modes that each of the other planners chooses, int64 [gaps]; some may exceed the budget.
    Those on demand are left out."""
    yield belady(asked.facts, asked.limits.device_bytes)
    yield from every_kth(asked.facts)
    yield from by_bytes(asked.facts)
    yield from asked.capuchins(MOST_PAIRS)


def _pairs(facts: Problem, budget: int) -> float:
    """Estimate Capuchin's work: number of candidates times number of decisions."""
    sizes = facts.size[np.unique(facts.gap_tensor[facts.gap_round < 0])]
    over = float(live_bytes(facts).max(initial=0)) - budget
    return len(sizes) * min(len(sizes), max(over, 0.0) / max(1.0, sizes.mean())) if len(sizes) else 0.0


def belady(facts: Problem, budget: int) -> Array:
    """Return Belady's modes: at each call without enough memory, swap the resident tensors whose next use is latest."""
    live = live_bytes(facts)
    mode = np.zeros(len(facts.gap_call), np.int64)
    there: list[tuple[int, int]] = []  # (-next use, gap)
    gap = 0
    for call in range(len(live)):
        while gap < len(mode) and facts.gap_call[gap] < call:
            heapq.heappush(there, (-int(facts.gap_next[gap]), gap))
            gap += 1
        while live[call] > budget and there and -there[0][0] > call:
            _, chosen = heapq.heappop(there)
            mode[chosen] = SWAP
            live[facts.gap_call[chosen] + 1:facts.gap_next[chosen]] -= facts.size[facts.gap_tensor[chosen]]
    return mode


def every_kth(facts: Problem) -> Iterator[Array]:
    """Yield Chen's modes: of the droppable tensors at the memory peak keep every k-th, and drop the others."""
    gaps = _droppable(facts)
    for k in EVERY:
        mode = np.zeros(len(facts.gap_call), np.int64)
        mode[gaps] = DROP
        mode[gaps[k - 1::k]] = 0
        yield mode


def by_bytes(facts: Problem) -> Iterator[Array]:
    """Yield the modes of Chen's greedy choice, for several numbers of parts.
    Of the droppable tensors at the memory peak it keeps one after each such part of their total bytes, and drops the
    others."""
    gaps = _droppable(facts)
    passed = np.cumsum(facts.size[facts.gap_tensor[gaps]])
    for count in SEGMENTS:
        mode = np.zeros(len(facts.gap_call), np.int64)
        mode[gaps] = DROP
        ends = np.searchsorted(passed, np.arange(1, count) / count * passed[-1]) if len(gaps) else gaps
        mode[gaps[ends]] = 0
        yield mode


def _droppable(facts: Problem) -> Array:
    there = most_held(facts)
    droppable: Array = there[facts.may_drop[there]]
    return droppable
