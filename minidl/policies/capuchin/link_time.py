"""One direction of the link: how much of each call's time transfers have taken, and where another would lie."""

from __future__ import annotations

import numpy as np

from minidl.planning.problem import Array


class LinkTime:
    """One direction of the link, which carries one transfer at a time: each call leaves it as many nanoseconds as the
    call takes. Integers, so that sums do not depend on their order.

    Copies out fill calls from their beginning and go forwards, copies in fill them from their end and go backwards; so
    what is left of a call is one piece. Questions are asked of many transfers at once, as arrays.
    """

    def __init__(self, starts: Array) -> None:
        """starts: of each call, and the end of the last."""
        self.starts = starts
        self.left = np.diff(starts)
        self.before = starts - starts[0]  # what is left of the calls before each

    def out_end(self, call: Array, time: Array) -> Array:
        """When a copy out lands that may start with ``call``. Past the last call the link is free."""
        wanted = self.before[call] + time
        k = np.searchsorted(self.before, wanted) - 1  # the call in which it lands
        last = len(self.left)
        piece = np.where(k < last, self.starts[np.minimum(k + 1, last)] - self.left[np.minimum(k, last - 1)],
                         self.starts[last])
        return np.asarray(piece + wanted - self.before[k])

    def left_between(self, call: Array, other: Array) -> Array:
        """Time left from the start of a call to that of a later one."""
        return np.asarray(self.before[other] - self.before[call])

    def left_in(self, earliest: Array, call: Array) -> Array:
        """Time left from an instant to the start of ``call``; negative if the instant is later than that."""
        first = np.minimum(np.searchsorted(self.starts, earliest, side="right") - 1, len(self.left) - 1)
        part = np.maximum(0, self.starts[first] + self.left[first] - earliest)
        return np.asarray(np.where(earliest >= self.starts[call], self.starts[call] - earliest,
                                   part + self.before[call] - self.before[first + 1]))

    def in_start(self, earliest: Array, call: Array, time: Array) -> Array:
        """When a copy in starts that uses the last time left before ``call``, though not before ``earliest``."""
        wanted = self.before[call] - time
        k = np.searchsorted(self.before, np.maximum(wanted, 0), side="right") - 1
        k = np.minimum(k, len(self.left) - 1)
        begin = np.where(wanted < 0, self.starts[0] - 1, self.starts[k] + np.maximum(wanted, 0) - self.before[k])
        return np.asarray(np.maximum(begin, earliest))

    def take_out(self, call: int, end: int) -> None:
        """Reserve a copy out that may start with ``call`` and lands at ``end``: all that was left until then."""
        self.left[call:] = np.minimum(self.left[call:], np.maximum(0, self.starts[call + 1:] - end))
        self._sum()

    def take_in(self, start: int, call: int) -> None:
        """Reserve a copy in from ``start`` to the beginning of ``call``: all that was left from then on."""
        self.left[:call] = np.minimum(self.left[:call], np.maximum(0, start - self.starts[:call]))
        self._sum()

    def _sum(self) -> None:
        self.before = np.concatenate([[0], np.cumsum(self.left)])
