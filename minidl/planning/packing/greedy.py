"""Greedy placing at any size: several orders, in each of which every rectangle takes the first hole, or the smallest,
that is free during all its steps. As fast as a comparison of each with those that lie already; never improved.

The orders are those of planners, largest, longest or largest area first, and that of time, in which an allocator sees
them (Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference").
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidl.outside.numba_cache import njit
from minidl.planning.packing.strip import ANYWHERE, Strip
from minidl.planning.problem import Array

MOST_PAIRS = 600_000_000  # compared for all orders: a second or two


def greedy(strip: Strip) -> Iterator[Array]:
    """Offsets by one order after the other, the most promising first, as far as MOST_PAIRS allows; one at least."""
    long, count = strip.last - strip.first + 1, len(strip.size)
    free = strip.fixed == ANYWHERE
    by_size, by_time = (-strip.size, -long, strip.first), (strip.first, -strip.size)
    keys = (by_size, (-long, -strip.size, strip.first), by_time, (-strip.size * long.astype(np.float64),))
    pairs = count * count // 2
    left = max(MOST_PAIRS, pairs)
    for smallest in (False, True):
        for key in keys:
            if (left := left - pairs) < 0:
                return
            order = np.lexsort((*key[::-1], strip.fixed, free))
            yield _placed(strip.first, strip.last, strip.size, strip.fixed, order, int((~free).sum()), smallest)


@njit(cache=True)
def _placed(first: Array, last: Array, size: Array, fixed: Array, order: Array, begin: int, smallest: bool) -> Array:
    """Offsets in one order, of which the first ``begin`` lie already. smallest: each takes the smallest hole."""
    offset, count = fixed.copy(), len(order)
    # Of what lies, by its offset, side by side in memory: most of the time goes into looking at these.
    low, high = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    starts, ends = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    for n in range(count):
        i = order[n]
        at = offset[i]
        if n >= begin:
            at, best, least = 0, -1, 1 << 62
            for k in range(n):
                if starts[k] <= last[i] and first[i] <= ends[k]:
                    hole = low[k] - at
                    if hole >= size[i] and hole < least:
                        best, least = at, hole
                        if not smallest:
                            break
                    at = max(at, high[k])
            at = best if best >= 0 else at
        m = np.searchsorted(low[:n], at, side="right")
        for k in range(n, m, -1):
            low[k], high[k], starts[k], ends[k] = low[k - 1], high[k - 1], starts[k - 1], ends[k - 1]
        low[m], high[m], starts[m], ends[m] = at, at + size[i], first[i], last[i]
        offset[i] = at
    return offset
