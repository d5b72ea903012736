"""Routes: what finds no place for all of its time lies in several, one after the other, with a move in between.

Packed strips are full but for holes that come and go. Nearly each rectangle that found no place can stay in one of
these holes until something else is to lie there, be moved to the next, and so on; a move within the device takes a
hundredth of the time that a copy to the host and back would. The hole that lasts longest is taken each time, which
makes the fewest moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minidl.outside.numba_cache import njit
from minidl.planning.packing.strip import ANYWHERE, Strip
from minidl.planning.problem import Array


class Stay(NamedTuple):
    """One place of a rectangle: from a step on, at an offset."""

    step: int
    offset: int


Cuts = Callable[[int], Array]
"""Of a rectangle, the steps before which it may be moved, in ascending order."""
LARGEST = 256    # of those without a place, so many at most are looked at;
CANDIDATES = 16  # places at most that are tried for one that has no route, if what lies there can go elsewhere,
MOST = 2_000     # and so many routes that are looked for on the way, in all;
MEETING = 2_000  # not where more than so many meet it


def routes(that: Strip, offset: Array, cuts: Cuts, effort: float = 1.0) -> dict[int, list[Stay]]:
    """The stays of each rectangle that lies above the room and finds places all the same, and of each that makes way
    for one of them; the others lie as given. effort: share of the usual work, at most all of it."""
    effort = min(effort, 1.0)
    layout, found = _Layout.of(that, offset), {}
    homeless = np.nonzero((offset + that.size > that.room) & (that.fixed == ANYWHERE))[0]
    homeless = homeless[np.argsort(-that.size[homeless], kind="stable")][:int(effort * LARGEST)]
    left = []
    for n in homeless.tolist():
        stays = layout.route(that, n, cuts(n))
        if stays:
            found[n], layout = stays, layout.with_stays(that, n, stays)
        else:
            left.append(n)
    tried = 0
    for n in left:
        for place, others in layout.places(that, n):
            there, theirs = layout.without(others).with_stays(that, n, [Stay(int(that.first[n]), place)]), {}
            for other in others[np.argsort(-that.size[others], kind="stable")].tolist():
                tried += 1
                theirs[other] = there.route(that, other, cuts(other))
                if not theirs[other]:
                    break
                there = there.with_stays(that, other, theirs[other])
            else:
                found.update(theirs)
                found[n], layout = [Stay(int(that.first[n]), place)], there
                break
            if tried > effort * MOST:
                return found
    return found


class _Layout(NamedTuple):
    """The placed parts: the rectangle of each, its first and last step, its lowest byte and the first byte above."""

    whose: Array
    first: Array
    last: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, that: Strip, offset: Array) -> _Layout:
        """The rectangles that do not reach above the room."""
        lies = np.nonzero(offset + that.size <= that.room)[0]
        return cls(lies, that.first[lies], that.last[lies], offset[lies], (offset + that.size)[lies])

    def without(self, rectangles: Array) -> _Layout:
        """The others."""
        rest = ~np.isin(self.whose, rectangles)
        return _Layout(*(each[rest] for each in self))

    def with_stays(self, that: Strip, n: int, stays: list[Stay]) -> _Layout:
        """All that lies there, and one rectangle with its stays."""
        steps, places = (np.array(each) for each in zip(*stays, strict=True))
        parts = np.full(len(stays), n), steps, np.append(steps[1:] - 1, that.last[n]), places, places + that.size[n]
        return _Layout(*(np.append(each, more) for each, more in zip(self, parts, strict=True)))

    def meeting(self, that: Strip, n: int) -> _Layout:
        """The parts that share a step with a rectangle, in the order of their first steps."""
        meets = np.nonzero((self.last >= that.first[n]) & (self.first <= that.last[n]))[0]
        meets = meets[np.argsort(self.first[meets], kind="stable")]
        return _Layout(*(each[meets] for each in self))

    def route(self, that: Strip, n: int, cuts: Array) -> list[Stay]:
        """The stays of one rectangle between all that lies there; none if at some time there is no hole for it."""
        _, first, last, low, high = self.meeting(that, n)
        step, end, nbytes = int(that.first[n]), int(that.last[n]), int(that.size[n])
        stays: list[Stay] = []
        here = -nbytes  # what is moved does not overlap the place that it comes from
        while True:
            until, offset = _longest(first, last, low, high, step, nbytes, here, that.room)
            if offset < 0:
                return []
            stays.append(Stay(step, offset))
            if until >= end:
                return stays
            cut = np.searchsorted(cuts, until + 1, side="right") - 1
            if cut < 0 or cuts[cut] <= step:
                return []
            step, here = int(cuts[cut]), offset

    def places(self, that: Strip, n: int) -> list[tuple[int, Array]]:
        """Where one could lie for all of its time, with what would have to go for it, the fewest bytes first."""
        meets, nbytes = self.meeting(that, n), int(that.size[n])
        if len(meets.whose) > MEETING:
            return []
        places = np.unique(np.concatenate([np.zeros(1, np.int64), meets.high, meets.low - nbytes]))
        places = places[(places >= 0) & (places + nbytes <= that.room)]
        hit = (meets.low < places[:, None] + nbytes) & (meets.high > places[:, None])
        stuck = (hit & (that.fixed[meets.whose] != ANYWHERE)).any(axis=1)
        cost = np.where(stuck, np.inf, (hit * (meets.high - meets.low)).sum(axis=1))
        best = [p for p in np.argsort(cost, kind="stable")[:CANDIDATES] if cost[p] < np.inf]
        return [(int(places[p]), np.unique(meets.whose[hit[p]])) for p in best]


@njit(cache=True)
def _longest(first: Array, last: Array, low: Array, high: Array, step: int, nbytes: int, here: int, room: int
             ) -> tuple[int, int]:
    """(The last step, offset) of the place that is free for longest from a step on; offset -1 if there is none.

    first ... high: what lies somewhere, in the order of its first steps; here: another place that is taken meanwhile.
    """
    lows, highs = np.zeros(2 * len(first) + 4, np.int64), np.zeros(2 * len(first) + 4, np.int64)
    highs[0] = room
    count = 1
    if nbytes > room:
        return step, -1
    for k in range(-1, len(first)):
        if k >= 0 and last[k] < step:
            continue
        begin, stop = (here, here + nbytes) if k < 0 else (low[k], high[k])
        left, others = count, count
        for h in range(count):
            if stop <= lows[h] or begin >= highs[h]:
                continue
            below, above = begin - lows[h] >= nbytes, highs[h] - stop >= nbytes
            if not (below or above):
                left -= 1
        if not left:
            if k < 0 or first[k] <= step:
                return step, -1
            return first[k] - 1, lows[0]
        for h in range(count - 1, -1, -1):
            if stop <= lows[h] or begin >= highs[h]:
                continue
            below, above = begin - lows[h] >= nbytes, highs[h] - stop >= nbytes
            if below and above:
                lows[others], highs[others] = stop, highs[h]
                others += 1
                highs[h] = begin
            elif below:
                highs[h] = begin
            elif above:
                lows[h] = stop
            else:
                others -= 1
                lows[h], highs[h] = lows[others], highs[others]
        count = others
    return 1 << 62, lows[0]
