"""Routes: a rectangle for which no single address is free for its whole lifetime gets several in turn, with moves.

Packed strips are full except for holes that open and close. Almost every rectangle without an address can occupy such a
hole until it closes, then move to the next one; a move within the device takes a hundredth of the time of a copy to the
host and back. Choosing the hole that lasts longest each time makes the fewest moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from minidl.outside.numba_cache import njit
from minidl.planning.packing.strip import ANYWHERE, Strip
from minidl.planning.problem import Array


class RoutePoint(NamedTuple):
    """One stay of a rectangle: the step from which on it is at ``offset``, until its next stay."""

    step: int
    offset: int


Cuts = Callable[[int], Array]
"""Returns the steps before which a rectangle may be moved, in ascending order."""
LARGEST = 256    # rectangles without an address that are tried, the largest first
CANDIDATES = 16  # offsets tried for a rectangle without a route, if the rectangles there can be routed elsewhere
MOST = 2_000     # routes searched for in all of these trials together
MOST_OVERLAPS = 2_000  # no trials for a rectangle that overlaps more rectangles than this in time


def routes(strip: Strip, offset: Array, cuts: Cuts, effort: float = 1.0) -> dict[int, list[RoutePoint]]:
    """Return the stays of each rectangle that gets a route, and of each that has to make way for one.
    Rectangles above the strip's room need one, the largest first; all others keep their ``offset``. cuts: rectangle ->
    the steps before which it may move; effort: share of the usual work, at most 1."""
    effort = min(effort, 1.0)
    layout, found = _Layout.of(strip, offset), {}
    unplaced = np.nonzero((offset + strip.size > strip.room) & (strip.fixed == ANYWHERE))[0]
    unplaced = unplaced[np.argsort(-strip.size[unplaced], kind="stable")][:int(effort * LARGEST)]
    left = []
    for n in unplaced.tolist():
        stays = layout.route(strip, n, cuts(n))
        if stays:
            found[n], layout = stays, layout.with_stays(strip, n, stays)
        else:
            left.append(n)
    tried = 0
    for n in left:
        for place, others in layout.places(strip, n):
            here, theirs = [RoutePoint(int(strip.first[n]), place)], {}
            there = layout.without(strip, others).with_stays(strip, n, here)
            for other in others[np.argsort(-strip.size[others], kind="stable")].tolist():
                tried += 1
                theirs[other] = there.route(strip, other, cuts(other))
                if not theirs[other]:
                    break
                there = there.with_stays(strip, other, theirs[other])
            else:
                found.update(theirs)
                found[n], layout = here, there
                break
            if tried > effort * MOST:
                return found
    return found


class _Layout(NamedTuple):
    """The placed parts of rectangles, int64 [5, parts].
    Rows: each part's rectangle, its first and last step, and its bytes [low, high)."""

    parts: Array

    @classmethod
    def of(cls, strip: Strip, offset: Array) -> _Layout:
        """Return the layout of the rectangles that do not reach above the room."""
        lies = np.nonzero(offset + strip.size <= strip.room)[0]
        return cls(np.stack([lies, strip.first[lies], strip.last[lies], offset[lies], (offset + strip.size)[lies]]))

    def without(self, strip: Strip, rectangles: Array) -> _Layout:
        """Return the layout without some rectangles."""
        stays = np.ones(len(strip.size), np.bool_)
        stays[rectangles] = False
        return _Layout(self.parts.compress(stays[self.parts[0]], axis=1))

    def with_stays(self, strip: Strip, n: int, stays: list[RoutePoint]) -> _Layout:
        """Return the layout with one more rectangle, placed at its stays."""
        last, size = int(strip.last[n]), int(strip.size[n])
        ends = [*(stay.step - 1 for stay in stays[1:]), last]
        more = [(n, step, end, low, low + size) for (step, low), end in zip(stays, ends, strict=True)]
        return _Layout(np.concatenate([self.parts, np.array(more, np.int64).T], axis=1))

    def overlapping(self, strip: Strip, n: int) -> Array:
        """Return the parts that overlap rectangle n in time, in the order of their first steps: int64 [5, parts]."""
        _, first, last, _, _ = self.parts
        overlaps = np.nonzero((last >= strip.first[n]) & (first <= strip.last[n]))[0]
        found: Array = self.parts.take(overlaps[np.argsort(first[overlaps], kind="stable")], axis=1)
        return found

    def route(self, strip: Strip, n: int, cuts: Array) -> list[RoutePoint]:
        """Return stays for rectangle n in the holes of the layout; an empty list if at some step no hole fits.
        cuts: the steps before which it may move."""
        _, first, last, low, high = self.overlapping(strip, n)
        step, end, nbytes = int(strip.first[n]), int(strip.last[n]), int(strip.size[n])
        stays: list[RoutePoint] = []
        here = -nbytes  # the current offset: source and destination of a move do not overlap
        while True:
            until, offset = _longest(first, last, low, high, step, nbytes, here, strip.room)
            if offset < 0:
                return []
            stays.append(RoutePoint(step, offset))
            if until >= end:
                return stays
            cut = cuts.searchsorted(until + 1, side="right") - 1
            if cut < 0 or cuts[cut] <= step:
                return []
            step, here = int(cuts[cut]), offset

    def places(self, strip: Strip, n: int) -> list[tuple[int, Array]]:
        """Return (offset, rectangles that would have to move away) for rectangle n, the fewest bytes to move first."""
        (whose, _, _, low, high), nbytes = self.overlapping(strip, n), int(strip.size[n])
        if len(whose) > MOST_OVERLAPS:
            return []
        places = np.unique(np.concatenate([np.zeros(1, np.int64), high, low - nbytes]))
        places = places[(places >= 0) & (places + nbytes <= strip.room)]

        # The rectangle would overlap the parts that begin below its top, except those that end at its low end or below.
        weights = np.stack([high - low, strip.fixed[whose] != ANYWHERE])
        cost, fixed = _below(low, weights, places + nbytes, "left") - _below(high, weights, places, "right")
        usable = np.nonzero(fixed == 0)[0]
        best = places[usable[np.argsort(cost[usable], kind="stable")[:CANDIDATES]]]
        return [(int(place), np.unique(whose[(low < place + nbytes) & (high > place)])) for place in best]


def _below(at: Array, weights: Array, limits: Array, side: Literal["left", "right"]) -> Array:
    """Return the total weights of the entries of ``at`` below each limit, [kinds, limits].
    side: "right" to count entries equal to the limit, too; weights: of each entry, [kinds, entries]."""
    order = np.argsort(at)
    totals = np.pad(np.cumsum(weights[:, order], axis=1), ((0, 0), (1, 0)))
    found: Array = totals[:, np.searchsorted(at[order], limits, side=side)]
    return found


@njit(cache=True, nogil=True)
def _longest(first: Array, last: Array, low: Array, high: Array, step: int, nbytes: int, here: int, room: int
             ) -> tuple[int, int]:
    """Return (last step, offset) of the hole of ``nbytes`` that stays free longest from ``step`` on; offset -1 if none.
    first, last, low, high: the placed parts, in the order of their first steps. here: where the rectangle lies now;
    the hole may not overlap it."""
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
