"""Heuristic placing: in some order each rectangle takes the lowest bytes that are free during all its steps.

Largest first is good (greedy by size: Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net
Inference"). While some reach above the strip, one of these goes to a random earlier place in the order, or any to any
other place; kept unless more bytes are above the strip than before. Work is counted, in comparisons; if it is used up
before all have been placed once, the rest goes on top, with no comparisons.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from minidl.compiling import njit
from minidl.planning.packing.strip import ANYWHERE, Strip
from minidl.planning.problem import Array

FIRST_ORDERS = 6
MUCH = 1 << 62


def by_orders(strip: Strip, most_work: int) -> tuple[Array, int]:
    """(offsets, bytes of what lies above the room)."""
    long = strip.first - strip.last
    orders = ((strip.first, -strip.size), (strip.size * (long - 1.0),), (long, -strip.size))  # later keys weigh more
    least, best, work = MUCH, np.zeros(len(strip.size), np.int64), 0
    free = strip.fixed == ANYWHERE
    for attempt in range(FIRST_ORDERS):
        order = np.lexsort((*orders[attempt % len(orders)], strip.fixed, free))
        share = (most_work - work) // (FIRST_ORDERS - attempt)
        offset, over, done = _improve(strip.first, strip.last, strip.size, strip.fixed, order, int((~free).sum()),
                                      strip.room, share, attempt)
        work += done
        if over < least:
            least, best = over, offset
        if not over or work >= most_work:
            break
    return best, int(least)


@register_jitable(_nrt=False)
def _place(first: Array, last: Array, size: Array, order: Array, start: int, offset: Array, by_offset: Array, room: int,
           most_over: int, most_work: int) -> tuple[int, int]:
    """Place all in this order from ``start`` on: (bytes of what is above the room, work done).

    ``by_offset`` has what has been placed, lowest first. Ends early if more than most_over are above.
    """
    high = above = work = 0
    for n in range(start):
        end = offset[order[n]] + size[order[n]]
        high = max(high, end)
        above += size[order[n]] if end > room else 0
    for n in range(start, len(order)):
        i = order[n]
        at = 0
        m = n
        if work > most_work:
            at = high
        else:
            for k in range(n):
                j = by_offset[k]
                if first[j] <= last[i] and first[i] <= last[j]:
                    if offset[j] - at >= size[i]:
                        break
                    at = max(at, offset[j] + size[j])
            while m > 0 and offset[by_offset[m - 1]] > at:
                by_offset[m] = by_offset[m - 1]
                m -= 1
            work += n
        by_offset[m] = i
        offset[i] = at
        high = max(high, at + size[i])
        above += size[i] if at + size[i] > room else 0
        if above + max(0, high - room) > most_over:
            return MUCH, work
    return above + max(0, high - room), work


@njit(cache=True)
def _improve(first: Array, last: Array, size: Array, fixed: Array, order: Array, begin: int, room: int, most_work: int,
             seed: int) -> tuple[Array, int, int]:
    """(offsets, bytes of what is above the room, work done), the best that was found from one first order, in which
    what is fixed comes first, as it lies; ``begin``: how many these are."""
    np.random.seed(seed)
    count = len(order)
    offset, by_offset, place = fixed.copy(), order.copy(), np.zeros(count, np.int64)
    over, work = _place(first, last, size, order, begin, offset, by_offset, room, MUCH, most_work)
    best, lowest_first, trial = offset.copy(), by_offset.copy(), order.copy()
    while over and work < most_work and begin < count:
        if np.random.random() < 0.6:
            above = 0
            at = begin
            for k in range(begin, count):  # one of those above the room, each as likely
                if best[order[k]] + size[order[k]] > room:
                    above += 1
                    if np.random.randint(above) == 0:
                        at = k
            to = np.random.randint(begin, at + 1)
        else:
            at, to = np.random.randint(begin, count), np.random.randint(begin, count)
        step = 1 if to > at else -1
        for k in range(at, to, step):
            trial[k] = order[k + step]
        trial[to] = order[at]
        start = min(at, to)  # before it all stay where they are
        place[order] = np.arange(count)
        n = 0
        for i in lowest_first:
            if place[i] < start:
                by_offset[n] = i
                n += 1
        offset[:] = best
        now, done = _place(first, last, size, trial, start, offset, by_offset, room, over, most_work)
        work += done + 4 * count
        if now <= over:
            over = now
            best[:], lowest_first[:], order[:] = offset, by_offset, trial
        else:
            trial[:] = order
    return best, over, work
