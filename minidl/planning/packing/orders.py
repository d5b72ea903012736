"""First-fit packing in a given order, with local search over orders.

In order, each rectangle takes the lowest bytes that are free during all its steps. Largest first is a good order
(greedy by size: Pisarchyk and Lee 2020, "Efficient Memory Management for Deep Neural Net Inference"). While rectangles
reach above the strip, the search moves one of them to a random earlier position of the order, or any rectangle to any
position, and keeps the change unless more bytes are above the strip than before. Only rectangles that overlap a moved
one in time are placed again. Work is counted in comparisons; if it is used up during the first pass, the remaining
rectangles are stacked on top without comparisons.
"""

import numpy as np
from numba.extending import register_jitable

from minidl.outside.numba_cache import njit
from minidl.planning.packing.strip import ANYWHERE, Strip
from minidl.planning.problem import Array

TRIAL = 10  # each first order gets 1/TRIAL of the remaining work; the best of them gets the rest
A_PAIR = 6  # units of work to find, or to compare, two rectangles that overlap in time
MUCH = 1 << 62


def by_orders(strip: Strip, most_work: int) -> tuple[Array, int]:
    """Return (the rectangles' offsets, excess) of the best of the orders tried, the one with the least excess.
    excess: the bytes above the strip, as the function ``above`` counts them; 0 if none are. most_work: comparisons of
    two rectangles, after which the search ends."""
    long = strip.first - strip.last
    keys = ((strip.first, -strip.size), (strip.size * (long - 1.0),), (long, -strip.size))  # later keys weigh more
    free = strip.fixed == ANYWHERE
    orders = [np.lexsort((*key, strip.fixed, free)) for key in keys]
    least, best, leading = MUCH, np.zeros(len(strip.size), np.int64), 0
    begins, others, work = np.zeros(len(free) + 1, np.int64), np.zeros(0, np.int32), 0
    for attempt in range(2 + len(orders)):
        if attempt == 1:  # the first one is only placed
            begins, others = _meeting(strip, most_work // A_PAIR)
            work += A_PAIR * len(others)
        number = attempt % len(orders) if attempt <= len(orders) else leading
        share = (most_work - work) // (TRIAL if attempt <= len(orders) else 1)
        offset, over, done = _improve(strip.first, strip.last, strip.size, strip.fixed, orders[number],
                                      int((~free).sum()), begins, others, strip.room, share, attempt)
        work += done
        if over < least:
            least, best, leading = over, offset, number
        if not over or work >= most_work:
            break
    return best, int(least)


def above(offset: Array, size: Array, room: int) -> int:
    """Return a packing's excess over the strip, in bytes:
    the sum of the sizes of rectangles that reach above ``room``, plus the height by which the highest one exceeds
    it."""
    ends = offset + size
    return int(size[ends > room].sum()) + max(0, int(ends.max(initial=0)) - room)


def _meeting(strip: Strip, most: int) -> tuple[Array, Array]:
    """List, for each rectangle, those that overlap it in time: (pointers [rectangles + 1], flat list).
    Both are empty if the list would have more than ``most`` entries."""
    by_first = np.argsort(strip.first, kind="stable")
    begun = np.searchsorted(strip.first[by_first], strip.last, side="right")
    ended = np.searchsorted(np.sort(strip.last), strip.first)
    begins = np.append(0, np.cumsum(begun - ended - 1))  # itself does not count
    if begins[-1] > most:
        return np.zeros_like(begins), np.zeros(0, np.int32)
    return begins, _listed(strip.first, strip.last, by_first, begins)


@njit(cache=True, nogil=True)
def _listed(first: Array, last: Array, by_first: Array, begins: Array) -> Array:
    """Return the flat list of ``_meeting`` for its pointers, int32: lists of millions are read again and again."""
    there, at = np.zeros(len(first), np.int64), begins[:-1].copy()
    others = np.zeros(begins[-1], np.int32)
    alive = 0
    for i in by_first:
        kept = 0
        for k in range(alive):
            j = there[k]
            if last[j] >= first[i]:
                there[kept] = j
                kept += 1
                others[at[i]], others[at[j]] = j, i
                at[j] += 1
                at[i] += 1
        there[kept] = i
        alive = kept + 1
    return others


@register_jitable(_nrt=False)
def _place_all(first: Array, last: Array, size: Array, order: Array, begin: int, offset: Array, by_offset: Array,
               most_work: int) -> int:
    """Place the rectangles of ``order`` from position ``begin`` on; return the work done, in comparisons.
    The rectangles before ``begin`` have offsets already. by_offset: scratch array, as long as ``order``."""
    high = work = 0
    for n in range(len(order)):
        i, at, m = order[n], 0, n
        if n < begin:
            at = offset[i]
        elif work > most_work:
            at = high
        else:
            for k in range(n):
                j = by_offset[k]
                if first[j] <= last[i] and first[i] <= last[j]:
                    if offset[j] - at >= size[i]:
                        break
                    at = max(at, offset[j] + size[j])
            work += n
        if work <= most_work:
            while m > 0 and offset[by_offset[m - 1]] > at:
                by_offset[m] = by_offset[m - 1]
                m -= 1
        by_offset[m] = i
        offset[i] = at
        high = max(high, at + size[i])
    return work


@register_jitable(_nrt=False)
def _lowest(i: int, size: Array, offset: Array, place: Array, begins: Array, others: Array) -> int:
    """Return the lowest offset for rectangle i that overlaps none of the rectangles before it in the order.
    place: each rectangle's position in the order; begins, others: the rectangles that overlap i in time. Their list
    is left sorted by offset, so that the next sort is nearly free."""
    at = highest = 0
    for k in range(begins[i], begins[i + 1]):
        j, m = others[k], k
        if offset[j] >= highest:
            highest = offset[j]
            continue
        while m > begins[i] and offset[others[m - 1]] > offset[j]:
            others[m] = others[m - 1]
            m -= 1
        others[m] = j
    for k in range(begins[i], begins[i + 1]):
        j = others[k]
        if place[j] < place[i]:
            if offset[j] - at >= size[i]:
                break
            at = max(at, offset[j] + size[j])
    return at


@register_jitable(_nrt=False)
def _shift(order: Array, place: Array, at: int, to: int) -> None:
    """Move one entry of the order to another position; the entries between shift by one."""
    moved, step = order[at], 1 if to > at else -1
    for k in range(at, to, step):
        order[k] = order[k + step]
        place[order[k]] = k
    order[to] = moved
    place[moved] = to


@njit(cache=True, nogil=True)
def _improve(first: Array, last: Array, size: Array, fixed: Array, order: Array, begin: int, begins: Array,
             others: Array, room: int, most_work: int, seed: int) -> tuple[Array, int, int]:
    """Improve one order; return (offsets, excess as in ``by_orders``, work done) of the best order found.
    The first ``begin`` rectangles of the order are fixed. begins, others: the overlaps in time, from ``_meeting``."""
    np.random.seed(seed)
    count = len(order)
    offset, place = fixed.copy(), np.zeros(count, np.int64)
    work = _place_all(first, last, size, order, begin, offset, order.copy(), most_work)
    place[order] = np.arange(count)
    over = size[offset + size > room].sum()
    again = np.zeros(count, np.bool_)  # those to be placed again
    moved, before = np.zeros(count, np.int64), np.zeros(count, np.int64)
    work += A_PAIR * len(others) if over else 0
    for i in range(count if over and len(others) and work < most_work else 0):
        its = others[begins[i]:begins[i + 1]]
        its[:] = its[np.argsort(offset[its])]
    while over and work < most_work and begin < count and len(others):
        if np.random.random() < 0.6:
            above = 0
            at = begin
            for k in range(begin, count):  # a uniformly random rectangle above the room
                if offset[order[k]] + size[order[k]] > room:
                    above += 1
                    if np.random.randint(above) == 0:
                        at = k
            to = np.random.randint(begin, at + 1)
        else:
            at, to = np.random.randint(begin, count), np.random.randint(begin, count)
        i = order[at]
        _shift(order, place, at, to)
        low, high = min(at, to), max(at, to)
        again[i] = True
        waiting = 1
        for k in range(begins[i], begins[i + 1]):
            j = others[k]
            if low <= place[j] <= high:
                again[j] = True
                waiting += 1
        now, changes = over, 0
        n = low
        work += 4 * count + A_PAIR * (begins[i + 1] - begins[i])
        while waiting and now <= over:
            i = order[n]
            n += 1
            if not again[i]:
                continue
            again[i] = False
            waiting -= 1
            old, new = offset[i], _lowest(i, size, offset, place, begins, others)
            work += A_PAIR * (begins[i + 1] - begins[i])
            if new == old:
                continue
            moved[changes], before[changes] = i, old
            changes += 1
            offset[i] = new
            now += size[i] * ((new + size[i] > room) - (old + size[i] > room))
            for k in range(begins[i], begins[i + 1]):
                j = others[k]  # later rectangles that could be placed lower now, or that the moved one overlaps
                if place[j] >= n and not again[j] and (
                        old < offset[j] or (new < offset[j] + size[j] and offset[j] < new + size[i])):
                    again[j] = True
                    waiting += 1
        if now <= over:
            over = now
            continue
        if waiting:
            again[:] = False
        for k in range(changes - 1, -1, -1):
            offset[moved[k]] = before[k]
        _shift(order, place, to, at)
    return offset, over + max(0, (offset + size).max() - room), work
