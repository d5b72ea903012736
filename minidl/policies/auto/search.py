"""Local search over modes with the compiled simulation as its objective. Imported only when a plan is refined."""

from collections.abc import Callable

import numpy as np
from numba import njit

from minidl.planning import schedule

simulate: Callable[..., tuple[float, int, float, int, int]] = njit(cache=True)(schedule.simulate)


@njit(cache=True)
def improve(trace, budget, host_budget, slack, excess_price, copy_price, can_drop, movable, rare, mode, prefetch_at,
            evaluations, temperature, seed):
    """Improve ``mode`` in place; returns the (objective, seconds, bytes over the budget) of the best found.

    trace: ``Problem.arrays()``. movable: the gaps whose mode may change; rare: those that are tried less often. The
    objective is seconds, plus ``excess_price`` seconds a byte over the budget, plus ``copy_price`` seconds a byte
    copied: copies that computation hides are not free, they leave no room for a slower link. A move changes one gap's
    mode or exchanges two; it is kept if it is better, or worse by less than a temperature that falls to nothing.
    """
    np.random.seed(seed)
    nothing = np.zeros((0, 4), np.int64)
    time, over, _, moved, _ = simulate(*trace, budget, host_budget, slack, mode, prefetch_at, nothing)
    current = time + excess_price * over + copy_price * moved
    best, best_time, best_over = current, time, over
    best_mode = mode.copy()
    count, rare_count = len(movable), len(rare)
    for n in range(evaluations):
        a = movable[np.random.randint(count)]
        b = movable[np.random.randint(count)]
        if rare_count and np.random.random() < 0.15:
            a = rare[np.random.randint(rare_count)]
        before_a, before_b = mode[a], mode[b]
        if np.random.random() < 0.5:
            mode[a] = np.random.randint(3)
        else:
            mode[a], mode[b] = mode[b], mode[a]
        if (mode[a] == 2 and not can_drop[a]) or (mode[b] == 2 and not can_drop[b]) or (
                mode[a] == before_a and mode[b] == before_b):
            mode[a], mode[b] = before_a, before_b
            continue
        time, over, _, moved, _ = simulate(*trace, budget, host_budget, slack, mode, prefetch_at, nothing)
        value = time + excess_price * over + copy_price * moved
        if value <= current + temperature * (1.0 - n / evaluations) * np.random.random():
            current = value
            if value < best:
                best, best_time, best_over = value, time, over
                best_mode[:] = mode
        else:
            mode[a], mode[b] = before_a, before_b
    mode[:] = best_mode
    return best, best_time, best_over
