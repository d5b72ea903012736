"""The packing problem: rectangles, steps wide and bytes high, and the strip of memory that has to hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from minidl.planning.problem import Array

ANYWHERE = -1


class Strip(NamedTuple):
    """A packing problem: each rectangle's first and last step and its size in bytes, and the strip's bytes ``room``.
    ``fixed``: each rectangle's given offset from the strip's low end, or ANYWHERE if the packing chooses it."""

    first: Array
    last: Array
    size: Array
    room: int
    fixed: Array

    def of(self, chosen: Array) -> Strip:
        """Return the strip with only the rectangles ``chosen``, an array of numbers or booleans."""
        return Strip(self.first[chosen], self.last[chosen], self.size[chosen], self.room, self.fixed[chosen])


def strip(first: Array, last: Array, size: Array, room: int) -> Strip:
    """Return a strip whose rectangles may all be placed anywhere."""
    return Strip(first, last, size, room, np.full(len(size), ANYWHERE))


def live(first: Array, last: Array, size: Array, steps: int) -> Array:
    """Return the bytes of the rectangles that are live at each step, int64 [steps]."""
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return np.cumsum(change)[:-1]


def stacked(first: Array, last: Array, size: Array) -> Array:
    """Return offsets that stack the rectangles from 0 upwards, the longest-lived first.
    If all begin or all end at the same step, no bytes are wasted."""
    order = np.argsort(first - last, kind="stable")
    offset = np.empty(len(size), np.int64)
    offset[order] = np.cumsum(size[order]) - size[order]
    return offset


def most_live(strip: Strip) -> int:
    """Return the peak of live bytes over all steps, a lower bound of the room that any packing needs."""
    steps = int(strip.last.max(initial=-1)) + 1
    return int(live(strip.first, strip.last, strip.size, steps).max(initial=0))


def sections(strip: Strip) -> tuple[Array, Array]:
    """Return two arrays: the first and the last section that each rectangle is in.
    Sections divide the time axis: a new one begins at each step where a rectangle begins; two rectangles overlap in
    time if they share a section."""
    begins = np.unique(strip.first)
    return np.searchsorted(begins, strip.first), np.searchsorted(begins, strip.last, side="right") - 1


def apart(strip: Strip) -> Iterator[Array]:
    """Yield the rectangles' numbers in groups that do not overlap in time, so that each group can be packed alone."""
    order = np.argsort(strip.first, kind="stable")
    ends = np.maximum.accumulate(strip.last[order])
    yield from np.split(order, np.nonzero(strip.first[order][1:] > ends[:-1])[0] + 1)


def check(strip: Strip, offset: Array) -> None:
    """Raise AssertionError unless all rectangles lie in the strip and no two share a byte at the same step.
    It sweeps over the steps and compares each new rectangle with all live ones; it shares no code with the packers."""
    there: set[int] = set()
    events = [(last + 1, False, n) for n, last in enumerate(strip.last.tolist())]
    events += [(first, True, n) for n, first in enumerate(strip.first.tolist())]
    low, high = offset.tolist(), (offset + strip.size).tolist()
    for step, begins, n in sorted(events):
        if not begins:
            there.remove(n)
            continue
        assert low[n] >= 0 and high[n] <= strip.room, f"{n} at {low[n]}..{high[n]} is not within {strip.room}"
        for m in there:
            assert high[n] <= low[m] or high[m] <= low[n], (
                f"{n} at {low[n]}..{high[n]} and {m} at {low[m]}..{high[m]} are both there at step {step}")
        there.add(n)
