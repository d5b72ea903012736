"""Exact search: fills a strip from below, valley by valley, until all rectangles are placed or no branch is left.

A valley is a run of sections filled to one height between higher ones (``valleys``). A decision is about one end of a
valley: its answer is a rectangle that begins or ends there, or nothing. If a packing exists, there is one in which
every rectangle rests on the bottom or on another rectangle, so one of the answers is right.

  look-ahead  decide the end with the fewest answers next; an end without answers, or a valley that its fitting
              rectangles cannot fill to its walls, ends the branch.
  contention  among equals, decide the end where most branches have failed.
  conflicts   the decisions that made the floor and the walls cause a failure. The search jumps back to the latest of
              them and adds the others to its reasons (conflict-directed backjumping: Prosser 1993, "Hybrid
              Algorithms for the Constraint Satisfaction Problem").
  restarts    work is limited. The next search starts with the contention learned so far, and prefers the offsets that
              rectangles had last.
"""

import numpy as np
from numba.extending import register_jitable

from minidl.outside.numba_cache import njit
from minidl.planning.compiled import forget_older
from minidl.planning.packing import valleys
from minidl.planning.packing.strip import ANYWHERE, Strip, live, sections
from minidl.planning.packing.valleys import Rectangles, ValleyState, blame, fitting, may_rise, rise, survey
from minidl.planning.problem import Array

FOUND, NONE, UNKNOWN = 1, 0, -1
NOTHING = -1
# Columns of a decision: the valley's first and last section and which end is decided; the answer, the sections that it
# fills, the bytes that it wastes in each, its first entry; its first option, next option, and end of options.
LEFT, RIGHT, END, ANSWER, BEGIN, UPTO, LOST, ENTRY, FIRST, NEXT, STOP = range(11)


class StripSearch:
    """The exact search for one strip: each ``attempt`` starts anew, with the contention and offsets of earlier ones."""

    def __init__(self, strip: Strip) -> None:
        first, last = sections(strip)
        count = int(last.max()) + 1
        self.free = free = np.nonzero(strip.fixed == ANYWHERE)[0]
        self.offsets = strip.fixed.copy()
        self.floor = np.zeros(count, np.int64)  # the bytes below a fixed rectangle are not used
        for n in np.nonzero(strip.fixed != ANYWHERE)[0]:
            under = self.floor[first[n]:last[n] + 1]
            np.maximum(under, strip.fixed[n] + strip.size[n], out=under)
        first, last, size = first[free], last[free], strip.size[free]
        self.spare = strip.room - self.floor - live(first, last, size, count)
        self.open = live(first, last, np.ones_like(first), count)
        self.rects = Rectangles(first, last, size, *_listed(first, last, size, count),
                               *_listed(last, first, size, count))
        self.weight = np.ones(count)
        self.places = np.full(len(free), -1, np.int64)
        self.attempts = 0

    def attempt(self, work: int) -> tuple[int, int]:
        """Search once; return (result, work done), in sections visited, as is the limit ``work``.
        The result is FOUND (``self.offsets`` is the packing), NONE if none exists, or UNKNOWN at the limit."""
        if self.spare.min() < 0:
            return NONE, 0
        found, done = _search(self.rects, self.floor, self.spare, self.open, work, self.attempts, self.places,
                              self.weight)
        self.attempts += 1
        self.offsets[self.free] = self.places
        return found, done


def _listed(key: Array, other: Array, size: Array, count: int) -> tuple[Array, Array]:
    pointers = np.zeros(count + 1, np.int64)
    np.add.at(pointers, key + 1, 1)
    return np.cumsum(pointers), np.lexsort((size, other, key)).astype(np.int64)


@register_jitable(_nrt=False)
def _choose(state: ValleyState, weight: Array, decision: Array) -> int:
    """Write to ``decision`` the end of a valley to decide next; return the number of its answers."""
    least, fewest = 1e300, 0
    for left in range(len(state.right)):
        right = state.right[left]
        if right < 0:
            continue
        for end in range(2):
            count = state.answers[left, end]
            worth = count / weight[left if end == 0 else right] if count > 1 else count - 1.0
            if worth < least:
                least, fewest = worth, count
                decision[LEFT], decision[RIGHT], decision[END] = left, right, end
    return fewest


@register_jitable(_nrt=False)
def _list(rects: Rectangles, state: ValleyState, decision: Array, options: Array, found: Array, rank: Array,
          places: Array ) -> None:
    """List the answers to a decision: the rectangle that was there last, then others by falling rank, then NOTHING."""
    left, right, at_left = decision[LEFT], decision[RIGHT], decision[END] == 0
    floor = state.floor[left]
    count = fitting(rects, state, left, right, at_left, found)
    stop = decision[FIRST]
    for n in range(count):
        p = found[n]
        k = stop
        while k > decision[FIRST]:
            q = options[k - 1]
            p_again, q_again = places[p] == floor, places[q] == floor
            if (q_again and not p_again) or (q_again == p_again and rank[q] >= rank[p]):
                break
            options[k] = q
            k -= 1
        options[k] = p
        stop += 1
    if may_rise(rects, state, left, right, at_left, found, count):
        options[stop] = NOTHING
        stop += 1
    decision[STOP] = stop


@register_jitable(_nrt=False)
def _do(rects: Rectangles, state: ValleyState, decision: Array, level: int, p: int, places: Array, used: int) -> int:
    """Carry out answer p to a decision: a rectangle is placed, or the floor rises. Return the number of entries used.
    """
    edge = decision[LEFT] if decision[END] == 0 else decision[RIGHT]
    floor = state.floor[edge]
    if p == NOTHING:
        end, height = rise(rects, state, decision[LEFT], decision[RIGHT], decision[END] == 0)
        begin, end, lost = min(edge, end), max(edge, end), height - floor
    else:
        begin, end, height, lost = rects.first[p], rects.last[p], floor + rects.size[p], 0
        state.level[p] = level
        places[p] = floor
    decision[ANSWER], decision[BEGIN], decision[UPTO], decision[LOST], decision[ENTRY] = p, begin, end, lost, used
    for s in range(begin, end + 1):
        state.floor[s] = height
        state.spare[s] -= lost
        state.open[s] -= p != NOTHING
        state.entries[used, 0], state.entries[used, 1], state.entries[used, 2] = level, floor, state.latest[s]
        state.latest[s] = used
        used += 1
    return used


@register_jitable(_nrt=False)
def _undo(state: ValleyState, decision: Array) -> None:
    p = decision[ANSWER]
    for s in range(decision[BEGIN], decision[UPTO] + 1):
        e = state.latest[s]
        state.floor[s] = state.entries[e, 1]
        state.latest[s] = state.entries[e, 2]
        state.spare[s] += decision[LOST]
        state.open[s] += p != NOTHING
    if p != NOTHING:
        state.level[p] = -1


@register_jitable(_nrt=False)
def _latest(bits: Array, level: int) -> int:
    while level >= 0 and not (bits[level >> 6] >> np.uint64(level & 63)) & np.uint64(1):
        level -= 1
    return level


@njit(cache=True, nogil=True)
def _search(rects: Rectangles, floor: Array, spare: Array, still: Array, most_work: int, seed: int, places: Array,
            weight: Array) -> tuple[int, int]:
    """Run one search; return (FOUND, NONE or UNKNOWN, work done).
    ``places`` (last offsets) and ``weight`` (contention) keep what it learns for the next restart."""
    np.random.seed(seed)
    count, sections = len(rects.first), len(floor)
    most = 2 * (count + sections) + 64
    pool = 64 * sections + np.sum(rects.last - rects.first + 1)
    state = ValleyState(floor.copy(), spare.copy(), still.copy(), np.full(count, -1, np.int64),
                  np.full(sections, -1, np.int64), np.zeros((pool, 3), np.int64), np.full(sections, -1, np.int64),
                  np.zeros((sections, 2), np.int64), np.zeros(sections + 1, np.int64))
    why = np.empty((most, most // 64 + 1), np.uint64)
    decisions = np.zeros((most, 11), np.int64)
    options = np.zeros(16 * most, np.int64)
    found = np.zeros(count + 1, np.int64)
    rank = np.random.random(count) + 1
    if seed % 3 < 2:
        rank *= rects.size
    if seed % 3 != 1:
        rank *= rects.last - rects.first + 1
    placed = level = used = work = 0
    begin, end = 0, sections - 1  # the sections changed since the last survey
    while placed < count:
        work += survey(rects, state, begin, end, found) + sections // 8 + 4
        decision = decisions[level]
        decision[FIRST] = decisions[level - 1, STOP] if level else 0
        if work > most_work or level >= most - 1 or used + sections >= pool or (
                decision[FIRST] + count >= len(options)):
            return UNKNOWN, work
        if _choose(state, weight, decision):
            _list(rects, state, decision, options, found, rank, places)
        else:
            decision[STOP] = decision[FIRST]
        decision[NEXT] = decision[FIRST]
        why[level] = 0
        begin, end = sections, -1
        while decisions[level, NEXT] == decisions[level, STOP]:
            # No option is left: jump back to the latest decision that caused the failure.
            decision, reason = decisions[level], why[level]
            blame(rects, state, reason, decision[LEFT], decision[RIGHT], decision[END] == 0)
            weight[decision[LEFT] if decision[END] == 0 else decision[RIGHT]] += 1.0
            to = _latest(reason, level - 1)
            if to < 0:
                return NONE, work
            for k in range(level - 1, to - 1, -1):
                _undo(state, decisions[k])
                placed -= decisions[k, ANSWER] != NOTHING
                begin, end = min(begin, decisions[k, BEGIN]), max(end, decisions[k, UPTO])
            work += level - to
            used = decisions[to, ENTRY]
            reason[to >> 6] &= ~(np.uint64(1) << np.uint64(to & 63))
            for n in range((to >> 6) + 1):
                why[to, n] |= reason[n]
            level = to
        decision = decisions[level]
        p = options[decision[NEXT]]
        decision[NEXT] += 1
        used = _do(rects, state, decision, level, p, places, used)
        placed += p != NOTHING
        begin, end = min(begin, decision[BEGIN]), max(end, decision[UPTO])
        level += 1
    return FOUND, work


forget_older(_search, (valleys,))
