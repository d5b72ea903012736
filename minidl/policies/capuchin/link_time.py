"""Time left on one direction of the link, which transfers use up. Indexed, so that a plan is made in n log n."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class LinkTime:
    """One direction of the link, which carries one transfer at a time: each call leaves it as many nanoseconds as the
    call takes. Integers, so that sums do not depend on their order.

    Copies out fill calls from their beginning and go forwards, copies in fill them from their end and go backwards; so
    what is left of a call is one piece.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        """starts: of each call, and the end of the last."""
        self.starts = starts
        self.calls = len(starts) - 1
        self.left = [starts[k + 1] - starts[k] for k in range(self.calls)]
        self._sums = [0] * (self.calls + 1)  # a Fenwick tree over ``left``
        for k in range(1, self.calls + 1):
            self._sums[k] += self.left[k - 1]
            parent = k + (k & -k)
            if parent <= self.calls:
                self._sums[parent] += self._sums[k]
        self._earlier = list(range(self.calls + 1))  # [k + 1]: where to look for the last call <= k with time left
        self._later = list(range(self.calls + 1))

    def _use(self, call: int, time: int) -> None:
        self.left[call] -= time
        k = call + 1
        while k <= self.calls:
            self._sums[k] -= time
            k += k & -k
        if not self.left[call]:
            self._earlier[call + 1] = call
            self._later[call] = call + 1

    def left_before(self, call: int) -> int:
        """Time left in the calls before one."""
        total = 0
        while call:
            total += self._sums[call]
            call &= call - 1
        return total

    def out_end(self, call: int, time: int) -> int:
        """When a copy out of this length lands that may start with ``call``. Past the last call the link is free."""
        wanted = self.left_before(call) + time
        k, step, rest = 0, 1 << self.calls.bit_length(), wanted
        while step:
            if k + step <= self.calls and self._sums[k + step] < rest:
                k += step
                rest -= self._sums[k]
            step >>= 1
        if k >= self.calls:
            return self.starts[-1] + rest
        return self.starts[k + 1] - self.left[k] + rest

    def take_out(self, call: int, time: int) -> None:
        """Reserve a copy out: the first time that is left from ``call`` on."""
        call = _follow(self._later, call)
        while time and call < self.calls:
            used = min(time, self.left[call])
            self._use(call, used)
            time -= used
            call = _follow(self._later, call)

    def left_in(self, earliest: int, call: int) -> int:
        """Time left from an instant to the start of ``call``; negative if the instant is later than that."""
        if earliest >= self.starts[call]:
            return self.starts[call] - earliest
        first = bisect_right(self.starts, earliest) - 1
        part = max(0, self.starts[first] + self.left[first] - earliest)
        return part + self.left_before(call) - self.left_before(first + 1)

    def take_in(self, earliest: int, call: int, time: int) -> None:
        """Reserve a copy in: the last time that is left before ``call``, as far as there is any since ``earliest``."""
        call = _follow(self._earlier, call) - 1
        while time and call >= 0 and self.starts[call + 1] > earliest:
            used = min(time, self.left[call], max(0, self.starts[call] + self.left[call] - earliest))
            if used:
                self._use(call, used)
                time -= used
            call = _follow(self._earlier, call) - 1


def _follow(links: list[int], at: int) -> int:
    """The end of a chain of links, which is made short on the way."""
    end = at
    while links[end] != end:
        end = links[end]
    while links[at] != end:
        links[at], at = end, links[at]
    return end
