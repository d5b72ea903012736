"""Greedy packing for any number of rectangles: first fit and best fit in several fixed orders, without improvement.

Each rectangle takes the first hole, or the smallest, that is free during all its steps; it is compared with each placed
one. The orders are those of planners (largest, longest or largest area first) and the order of time, in which an
allocator sees them (Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference").
"""

from collections.abc import Iterator

import numpy as np

from minidl.outside.numba_cache import njit
from minidl.planning.packing.orders import above
from minidl.planning.packing.strip import ANYWHERE, Strip
from minidl.planning.problem import ENDLESS, Array

MOST_PAIRS = 600_000_000  # the most comparisons for all orders: a second or two


def greedy(strip: Strip, most_pairs: int = MOST_PAIRS, least: int = ENDLESS) -> Iterator[Array]:
    """Yield offsets, int64 [rectangles], for one order after the other, first those of first fit; at least one.
    Further orders are tried as long as the compared pairs of rectangles stay within ``most_pairs``.
    least: an excess (``orders.above``); orders with more than this, or than an order before them, are left out.
    ENDLESS: no order is left out."""
    long, count = strip.last - strip.first + 1, len(strip.size)
    free = strip.fixed == ANYWHERE
    by_size, by_time = (-strip.size, -long, strip.first), (strip.first, -strip.size)
    keys = (by_size, (-long, -strip.size, strip.first), by_time, (-strip.size * long.astype(np.float64),))
    pairs = count * count // 2
    left = max(most_pairs, pairs)
    for smallest in (False, True):
        for key in keys:
            if (left := left - pairs) < 0:
                return
            order = np.lexsort((*key[::-1], strip.fixed, free))
            offset, whole = _placed(strip.first, strip.last, strip.size, strip.fixed, order, int((~free).sum()),
                                    smallest, strip.room, least)
            if whole:
                yield offset
            if whole and least < ENDLESS:
                least = min(least, above(offset, strip.size, strip.room))


@njit(cache=True, nogil=True)
def _placed(first: Array, last: Array, size: Array, fixed: Array, order: Array, begin: int, smallest: bool, room: int,
            most: int) -> tuple[Array, bool]:
    """Place the rectangles in one order; return their offsets, and True if all are placed.
    Stop once more than ``most`` bytes are in rectangles that reach above ``room``. The first ``begin`` of the
    order have fixed offsets. smallest: True for best fit, False for first fit."""
    offset, count, over = fixed.copy(), len(order), 0
    # The placed rectangles, sorted by offset and contiguous in memory, because most of the time goes into reading them.
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
        over += size[i] if at + size[i] > room else 0
        if over > most:
            return offset, False
    return offset, True
