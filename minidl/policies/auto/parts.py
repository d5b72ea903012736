"""Modes that other planners choose. Searches of ``auto`` start from some of them, so that its plan is seldom worse.

Belady's planner swaps, whenever memory is short, the tensor with the latest next use (Belady 1966, "A study of
replacement algorithms"). Chen's keeps every k-th value, or one value after a number of bytes, and recomputes the others
(Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Capuchin's are the plans of ``policies/capuchin``.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import Lifetimes
from minidl.planning.modes import modes_of
from minidl.planning.problem import DROP, SWAP, Array, Problem
from minidl.policies.auto.choices import live_bytes, most_held
from minidl.policies.capuchin.policy import Capuchin, CapuchinRecompute

EVERY = (2, 3, 4, 6, 8, 12)             # Chen's k
MOST_PAIRS = 100_000                    # of candidates and decisions: about a third of a second of Capuchin's planner
SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24)  # numbers of parts of equal bytes; Chen's greedy choice keeps the end of each


def parts(trace: Trace, facts: Problem, costs: Costs, limits: Limits) -> Iterator[Array]:
    """Yield the modes that each of the other planners chooses, int64 [gaps]; some may exceed the budget."""
    yield belady(facts, limits.device_bytes)
    yield from every_kth(facts)
    yield from by_bytes(facts)
    yield from capuchins(trace, facts, costs, limits, MOST_PAIRS)


def capuchins(trace: Trace, facts: Problem, costs: Costs, limits: Limits, most: int) -> Iterator[Array]:
    """Yield the modes of Capuchin's hybrid and recompute-only planners.
    Skipped if their work, the number of candidates times the number of decisions, would exceed ``most``."""
    if _pairs(facts, limits.device_bytes) > most:
        return
    lives = Lifetimes.of(trace)
    for policy in (Capuchin(), CapuchinRecompute()):
        mode = modes_of(Plan(policy.choose(lives, costs, limits).evictions()), facts, trace)
        mode[(mode == DROP) & ~facts.may_drop] = SWAP
        yield mode


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
