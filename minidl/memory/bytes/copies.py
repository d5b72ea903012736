"""The copies out of bytes that are free again: which of them the next user of some of these bytes must wait for.

An arena unites a free block with its neighbours, and their marks. A plan gives out bytes whose neighbours are still
being copied out. If a call waited for those copies, too, it would come too late, and the plan would miss its prediction.
"""

from bisect import insort

MOST = 32
"""The copies that are listed. If there are more, those at the lowest positions, which end first, are forgotten."""


class Copies:
    """The latest copies out of freed bytes; a copy has the position on its stream at which it ends."""

    __slots__ = "_forgotten", "_latest", "_most"

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._latest: list[tuple[int, int, int]] = []  # position, the first byte, the end; ascending
        self._forgotten = 0  # the highest position that was taken off the list

    def note(self, position: int, first: int, end: int) -> None:
        """List the copy that ends at ``position``: it reads bytes from ``first`` to before ``end``, which are freed."""
        if position > self._forgotten:
            insort(self._latest, (position, first, end))
            if len(self._latest) > self._most:
                self._forgotten = self._latest.pop(0)[0]

    def last_out_of(self, first: int, end: int) -> int:
        """Return the position at which all copies out of these bytes have ended. A forgotten copy counts as one."""
        for position, start, stop in reversed(self._latest):
            if start < end and first < stop:
                return position
        return self._forgotten
