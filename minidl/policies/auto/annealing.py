"""Simulated annealing over modes; its objective is the simulated iteration, compiled. Imported when a search starts."""

from typing import Any, NamedTuple

import numpy as np

from minidl.outside.numba_cache import njit
from minidl.planning import compiled
from minidl.planning.compiled import weighed
from minidl.planning.problem import DROP, KEEP, Array, Problem
from minidl.planning.schedule import Prices
from minidl.planning.timing import Room

DOUBLINGS = 4   # a move changes 2, 4, 8 or 16 gaps of one kind
LONGEST = 1 << DOUBLINGS
SINGLE = 0.3    # the share of moves that change a single gap


class Moves(NamedTuple):
    """The gaps whose mode a search may change.

    often, rare  numbers of the gaps that most moves change, and of those that few moves change
    alike        per gap: the next gap of the same kind, or -1 (``choices.alike``)
    may_swap     per gap: False if the tensor is larger than host memory, so that it can only be kept or dropped
    """

    often: Array
    rare: Array
    alike: Array
    may_swap: Array


class Effort(NamedTuple):
    """The parameters of annealing: number of moves tried, first temperature in seconds, seed of the moves."""

    evaluations: int
    temperature: float
    seed: int


@njit(cache=True, nogil=True)  # a command tells meanwhile how far it is
def improve(problem: Problem, room: Room, prices: Prices, moves: Moves, effort: Effort, mode: Array, prefetch_at: Array
            ) -> Any:
    """Improve ``mode`` ([gaps]) in place; return (objective, seconds, bytes over the budget) of the best modes found.

    The objective is the iteration's seconds plus penalties for bytes over the budget and for bytes copied. A move sets
    the mode of one gap or exchanges the modes of two, alone or together with the next gaps of their kind. It is kept
    if the objective falls, or rises by less than a random share of a temperature that falls to 0. prefetch_at: scratch
    memory, int64 [gaps]; its values at the end do not belong to these modes.
    """
    np.random.seed(effort.seed)
    nothing = np.zeros((0, 4), np.int64)
    found = weighed(problem, room, mode, prefetch_at, nothing, prices, np.inf)
    current = found.seconds + prices.excess * found.excess + prices.copy * found.moved
    best, best_time, best_over = current, found.seconds, found.excess
    best_mode = mode.copy()
    gaps, before = np.zeros(2 * LONGEST, np.int64), np.zeros(2 * LONGEST, np.int64)
    for n in range(effort.evaluations):
        a = moves.often[np.random.randint(len(moves.often))]
        b = moves.often[np.random.randint(len(moves.often))]
        if len(moves.rare) and np.random.random() < 0.15:
            a = moves.rare[np.random.randint(len(moves.rare))]
        length = 1 if np.random.random() < SINGLE else 2 << np.random.randint(DOUBLINGS)
        exchanged, to = np.random.random() < 0.5, np.random.randint(3)
        changed = 0
        while length and a >= 0 and b >= 0:
            x, y = (mode[b], mode[a]) if exchanged else (to, mode[b])
            if (x == KEEP or (problem.may_drop[a] if x == DROP else moves.may_swap[a])) and (
                    y == KEEP or (problem.may_drop[b] if y == DROP else moves.may_swap[b])) and (
                    x != mode[a] or y != mode[b]):
                gaps[changed], before[changed] = a, mode[a]
                gaps[changed + 1], before[changed + 1] = b, mode[b]
                mode[a], mode[b] = x, y
                changed += 2
            a, b = moves.alike[a], moves.alike[b] if exchanged else b
            length -= 1
        if not changed:
            continue
        allowed = current + effort.temperature * (1.0 - n / effort.evaluations) * np.random.random()
        found = weighed(problem, room, mode, prefetch_at, nothing, prices, allowed)
        value = found.seconds + prices.excess * found.excess + prices.copy * found.moved
        if value <= allowed:
            current = value
            if value < best:
                best, best_time, best_over = value, found.seconds, found.excess
                best_mode[:] = mode
        else:
            for i in range(changed - 1, -1, -1):
                mode[gaps[i]] = before[i]
    mode[:] = best_mode
    return best, best_time, best_over


compiled.forget_older(improve, compiled.MODULES)
