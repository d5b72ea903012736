"""Bytes on the device during each call, which a plan lowers gap by gap. Indexed, so that a plan is made in n log n."""

from __future__ import annotations

from collections.abc import Sequence

NOWHERE = -1


class LiveBytes:
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
