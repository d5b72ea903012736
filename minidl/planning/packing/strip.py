"""Facts of a packing: rectangles, steps wide and bytes high, and the strip of memory that is to hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from minidl.planning.problem import Array

ANYWHERE = -1


class Strip(NamedTuple):
    """A packing problem: each rectangle's first and last step and its bytes; and the bytes of the strip.

    ``fixed``: the address of each, in bytes from the strip's low end; ANYWHERE if the packing chooses it.
    """

    first: Array
    last: Array
    size: Array
    room: int
    fixed: Array

    def of(self, chosen: Array) -> Strip:
        """The same strip with the chosen rectangles alone."""
        return Strip(self.first[chosen], self.last[chosen], self.size[chosen], self.room, self.fixed[chosen])


def strip(first: Array, last: Array, size: Array, room: int) -> Strip:
    """A strip for rectangles of which each may lie anywhere."""
    return Strip(first, last, size, room, np.full(len(size), ANYWHERE))


def live(first: Array, last: Array, size: Array, steps: int) -> Array:
    """Bytes that are live at each step."""
    change = np.zeros(steps + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return np.cumsum(change)[:-1]


def stacked(first: Array, last: Array, size: Array) -> Array:
    """Offsets at which rectangles lie one on the other, from 0 on, the longest lowest: where all begin or all end
    together, nothing is lost between them."""
    order = np.argsort(first - last, kind="stable")
    offset = np.empty(len(size), np.int64)
    offset[order] = np.cumsum(size[order]) - size[order]
    return offset


def most_live(strip: Strip) -> int:
    """The most bytes that are live at one step: in less room they cannot all lie."""
    steps = int(strip.last.max(initial=-1)) + 1
    return int(live(strip.first, strip.last, strip.size, steps).max(initial=0))


def sections(strip: Strip) -> tuple[Array, Array]:
    """(first, last section of each rectangle). A section begins with each step with which a rectangle begins, so
    rectangles meet if they share a section."""
    begins = np.unique(strip.first)
    return np.searchsorted(begins, strip.first), np.searchsorted(begins, strip.last, side="right") - 1


def apart(strip: Strip) -> Iterator[Array]:
    """The rectangles in parts, by number: none of a part meets one of another, so each is a packing of its own."""
    order = np.argsort(strip.first, kind="stable")
    ends = np.maximum.accumulate(strip.last[order])
    yield from np.split(order, np.nonzero(strip.first[order][1:] > ends[:-1])[0] + 1)


def check(strip: Strip, offset: Array) -> None:
    """Raise AssertionError unless all lie in the strip and no two share a byte at the same step.

    A sweep over the steps that compares what begins with all that is there. It shares nothing with what finds offsets.
    """
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
