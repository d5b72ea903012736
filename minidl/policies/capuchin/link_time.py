"""The free time of one direction of the link: where planned copies occupy it, and when one more copy could run."""

import numpy as np

from minidl.planning.problem import Array


class LinkTime:
    """The free time of one direction of the link during each call, in integer nanoseconds.
    Copies out fill calls forwards from their start, copies in fill them backwards from their end, so the free time of a
    call is one piece. The query methods take arrays, for many transfers at once."""

    def __init__(self, starts: Array) -> None:
        """Begin with a link that is free all the time.
        starts: nanoseconds at which each call starts and the last one ends."""
        self.starts = starts
        self.left = np.diff(starts)
        self.before = starts - starts[0]  # free time of all calls before each

    def out_end(self, call: Array, time: Array) -> Array:
        """Return the end of a copy out of duration ``time`` that may start with ``call``.
        After the last call the link is free."""
        wanted = self.before[call] + time
        k = np.searchsorted(self.before, wanted) - 1  # the call in which the copy ends
        last = len(self.left)
        piece = np.where(k < last, self.starts[np.minimum(k + 1, last)] - self.left[np.minimum(k, last - 1)],
                         self.starts[last])
        return np.asarray(piece + wanted - self.before[k])

    def left_between(self, call: Array, other: Array) -> Array:
        """Return the free time between the start of ``call`` and the start of a later call ``other``."""
        return np.asarray(self.before[other] - self.before[call])

    def left_in(self, earliest: Array, call: Array) -> Array:
        """Return the free time between ``earliest`` and the start of ``call``; negative if ``earliest`` is later."""
        first = np.minimum(np.searchsorted(self.starts, earliest, side="right") - 1, len(self.left) - 1)
        part = np.maximum(0, self.starts[first] + self.left[first] - earliest)
        return np.asarray(np.where(earliest >= self.starts[call], self.starts[call] - earliest,
                                   part + self.before[call] - self.before[first + 1]))

    def in_start(self, earliest: Array, call: Array, time: Array) -> Array:
        """Return the start of a copy in that uses the last free time before ``call``, but at least ``earliest``."""
        wanted = self.before[call] - time
        k = np.searchsorted(self.before, np.maximum(wanted, 0), side="right") - 1
        k = np.minimum(k, len(self.left) - 1)
        begin = np.where(wanted < 0, self.starts[0] - 1, self.starts[k] + np.maximum(wanted, 0) - self.before[k])
        return np.asarray(np.maximum(begin, earliest))

    def take_out(self, call: int, end: int) -> None:
        """Reserve all free time from the start of ``call`` to ``end`` for a copy out."""
        self.left[call:] = np.minimum(self.left[call:], np.maximum(0, self.starts[call + 1:] - end))
        self._sum()

    def take_in(self, start: int, call: int) -> None:
        """Reserve all free time from ``start`` to the start of ``call`` for a copy in."""
        self.left[:call] = np.minimum(self.left[:call], np.maximum(0, start - self.starts[:call]))
        self._sum()

    def _sum(self) -> None:
        self.before = np.concatenate([[0], np.cumsum(self.left)])
