"""Bytes in use by step, with fast additions to a range of steps and a fast search for the last one above a limit.

It is a square-root decomposition: steps are grouped in chunks. A chunk stores its maximum, and one addend for additions
that cover the whole chunk, so that an operation on a long range takes one unit of time per chunk. Plain Python that
Numba can compile. Arrays: ``level``, bytes by step without the addends; ``added``, the addend by chunk; ``top``, the
maximum by chunk, addend included.
"""

import numpy as np

from minidl.planning.problem import Array

BLOCK = 64  # steps: about the square root of the longest iterations


def tops(level: Array) -> Array:
    """Return the highest level of each chunk."""
    top = np.zeros(len(level) // BLOCK + 1, np.int64)
    for s in range(len(level)):
        top[s // BLOCK] = max(top[s // BLOCK], level[s])
    return top


def reach(level: Array, top: Array, added: Array, low: int, end: int, most: int) -> int:
    """Return the smallest step from ``low`` on from which no level up to ``end``, excluded, exceeds ``most``.
    The result is ``end`` if there is none. level, top, added: bytes by step, maximum and addend by chunk."""
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
    """Add ``by`` >= 0 bytes to the levels in [``begin``, ``end``); level, top and added are changed in place."""
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
    """Add to each level its chunk's addend, so that ``level`` alone holds the final values."""
    for s in range(len(level)):
        level[s] += added[s // BLOCK]
