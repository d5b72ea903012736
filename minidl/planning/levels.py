"""Bytes in use by step, raised over a stretch at a time: how far back from a step is there room?

Steps lie in blocks. What all of a block is raised by is kept once, beside its highest level, so that a long stretch
takes as many steps as it has blocks. Plain Python that Numba can compile.
"""

from __future__ import annotations

import numpy as np

from minidl.planning.problem import Array

BLOCK = 64  # steps: about the square root of the longest iterations


def tops(level: Array) -> Array:
    """The highest level of each block."""
    top = np.zeros(len(level) // BLOCK + 1, np.int64)
    for s in range(len(level)):
        top[s // BLOCK] = max(top[s // BLOCK], level[s])
    return top


def reach(level: Array, top: Array, added: Array, low: int, end: int, most: int) -> int:
    """The first step from ``low`` on from which to ``end`` (exclusive) no level is above ``most``; ``end`` if that of
    the last one is."""
    s = end
    while s > low:
        block = (s - 1) // BLOCK
        start = max(low, block * BLOCK)
        if top[block] > most:
            while s > start:
                if level[s - 1] + added[block] > most:
                    return s
                s -= 1
        s = start
    return s


def lift(level: Array, top: Array, added: Array, begin: int, end: int, by: int) -> None:
    """Raise the levels from ``begin`` to ``end`` (exclusive) by so many bytes, of which there are none below 0."""
    s = begin
    while s < end:
        block = s // BLOCK
        stop = min(end, (block + 1) * BLOCK)
        if stop - s == BLOCK:
            added[block] += by
            top[block] += by
        else:
            for q in range(s, stop):
                level[q] += by
                top[block] = max(top[block], level[q] + added[block])
        s = stop


def settle(level: Array, added: Array) -> None:
    """Give each level what all of its block has been raised by."""
    for s in range(len(level)):
        level[s] += added[s // BLOCK]
