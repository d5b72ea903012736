"""The copies out of bytes that are free again: which of them the next user of some of these bytes must wait for.

An arena unites a free block with its neighbours, and their marks. A plan gives out bytes whose neighbours are still
being copied out. If a call waited for those copies, too, it would come too late, and take longer than predicted.
"""

from collections import deque
from typing import TypeAlias

MOST = 32  # copies that are listed

Copies: TypeAlias = deque[tuple[int, int, int, int]]
"""The latest copies out of freed bytes, in the order in which these were freed: the position on the stream at which the
copy ends, the first byte that it reads, the byte after the last, and the highest position of all entries before it."""


def no_copies(most: int = MOST) -> Copies:
    """Return an empty list for at most ``most`` copies: the oldest entry makes way for a new one."""
    return deque(maxlen=most)


def last_out_of(copies: Copies, first: int, end: int) -> int:
    """Return the position at which all copies out of these bytes have ended.
    Copies that are listed no more count as copies of all bytes."""
    last = copies[0][3] if copies else 0
    for position, start, stop, _ in copies:
        if position > last and start < end and first < stop:
            last = position
    return last
