"""Two resources that a plan uses up call by call: bytes on the device, and time on one direction of the link.

Both are indexed, so that a plan is made in n log n. Know numbers of calls, bytes and nanoseconds; no tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

NOWHERE = -1


class Profile:
    """Bytes on the device during each call. A tree of maxima: adding to a range, its maximum, and where it is exceeded
    last each take log n steps."""

    def __init__(self, values: Sequence[int]) -> None:
        self.size = 1 << max(0, len(values) - 1).bit_length()
        self._top = [0] * self.size + list(values) + [0] * (self.size - len(values))
        self._added = [0] * (2 * self.size)  # to every call below this node, the node's own maximum included
        for node in range(self.size - 1, 0, -1):
            self._top[node] = max(self._top[2 * node], self._top[2 * node + 1])

    def add(self, first: int, last: int, nbytes: int) -> None:
        """Change calls first..last, both included, by ``nbytes``; nothing if the range is empty."""
        if first > last:
            return
        top, added = self._top, self._added
        low, high = first + self.size, last + self.size + 1
        touched = (low, high - 1)
        while low < high:
            if low & 1:
                top[low] += nbytes
                added[low] += nbytes
                low += 1
            if high & 1:
                high -= 1
                top[high] += nbytes
                added[high] += nbytes
            low >>= 1
            high >>= 1
        for node in touched:
            node >>= 1
            while node:
                left, right = top[2 * node], top[2 * node + 1]
                top[node] = (left if left > right else right) + added[node]
                node >>= 1

    def peak(self) -> int:
        """The largest value of all."""
        return self._top[1]

    def values(self, count: int) -> list[int]:
        """The first ``count`` values."""
        added, size = [0] * (2 * self.size), self.size
        for node in range(2, 2 * size):
            added[node] = added[node // 2] + self._added[node // 2]
        return [self._top[size + k] + added[size + k] for k in range(count)]

    def exceeds(self, first: int, last: int, limit: int) -> bool:
        """Whether some call in first..last is above ``limit``."""
        return self.last_above(first, last, limit) != NOWHERE

    def last_above(self, first: int, last: int, limit: int) -> int:
        """The last call in first..last above ``limit``, or NOWHERE."""
        return self._search(1, 0, self.size - 1, first, last, limit) if first <= last else NOWHERE

    def _search(self, node: int, low: int, high: int, first: int, last: int, limit: int) -> int:
        if high < first or last < low or self._top[node] <= limit:
            return NOWHERE
        if low == high:
            return low
        limit -= self._added[node]
        middle = (low + high) // 2
        found = self._search(2 * node + 1, middle + 1, high, first, last, limit)
        return found if found != NOWHERE else self._search(2 * node, low, middle, first, last, limit)


class Link:
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
