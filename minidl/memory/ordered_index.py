"""Entries in order, of any range of sizes, without looking at every size: a tournament of the sizes.

For each size there is a sorted list of its entries. A binary tree over the sizes, in ascending order, has at each node
the least entry of the sizes below it. So the least of a range of sizes is found in the few nodes that cover the range,
and each further one in a step down the tree: the logarithm of the number of sizes, where merging the lists would begin
by looking at each. A new size makes the tree anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

Entry = tuple[int, int, Any]  # compared by the first two, which are given once

MOST_SIZES = 10_000  # that are remembered, though nothing may be of them any more


class Fronts:
    """Sorted lists by size. ``between`` gives what is in some of them in one order."""

    def __init__(self) -> None:
        self._lists: dict[int, list[Entry]] = {}
        self._sizes: list[int] = []
        self._least: list[Entry | None] = []  # node 1 is the root, those below n are 2n and 2n + 1; sizes are leaves
        self._leaves = 0  # where these begin; 0 if the tree is to be made

    def add(self, size: int, entry: Entry) -> None:
        """An entry more of this size."""
        entries = self._lists.get(size)
        if entries is None:
            entries = self._lists[size] = []
            insort(self._sizes, size)
            self._leaves = 0
        insort(entries, entry)
        if self._leaves and entries[0] is entry:
            self._changed(size, entry)

    def remove(self, size: int, entry: Entry) -> None:
        """Take out an entry that is there."""
        entries = self._lists[size]
        index = bisect_left(entries, entry)
        del entries[index]
        if self._leaves and not index:
            self._changed(size, entries[0] if entries else None)

    def clear(self) -> None:
        """No entries; the sizes are remembered, as they will come again."""
        if len(self._sizes) > MOST_SIZES:
            self._lists.clear()
            self._sizes.clear()
        for entries in self._lists.values():
            entries.clear()
        self._leaves = 0

    def between(self, low: int, high: float) -> Iterator[tuple[int, Entry]]:
        """Entries of sizes from ``low`` to less than ``high``, each with its size, least first. What has been given
        may be removed meanwhile, and nothing else changed."""
        if not self._leaves:
            self._build()
        least, leaves, sizes = self._least, self._leaves, self._sizes
        begin, end = leaves + bisect_left(sizes, low), leaves + bisect_left(sizes, high)
        heap: list[tuple[Entry, int]] = []
        while begin < end:  # the nodes that cover the range, from the leaves up
            for node in (begin if begin & 1 else 0, end - 1 if end & 1 else 0):
                if node and (entry := least[node]) is not None:
                    heap.append((entry, node))
            begin, end = begin + 1 >> 1, end >> 1
        heapify(heap)
        while heap:
            entry, node = heappop(heap)
            if node < leaves:
                for below in (2 * node, 2 * node + 1):
                    if (first := least[below]) is not None:
                        heappush(heap, (first, below))
                continue
            size = sizes[node - leaves]
            yield size, entry
            entries = self._lists[size]
            index = bisect_right(entries, entry)
            if index < len(entries):
                heappush(heap, (entries[index], node))

    def _build(self) -> None:
        self._leaves = leaves = 1 << max(len(self._sizes) - 1, 0).bit_length()
        self._least = [None] * (2 * leaves)
        for place, size in enumerate(self._sizes, leaves):
            entries = self._lists[size]
            self._least[place] = entries[0] if entries else None
        for node in range(leaves - 1, 0, -1):
            self._least[node] = _lesser(self._least[2 * node], self._least[2 * node + 1])

    def _changed(self, size: int, first: Entry | None) -> None:
        least = self._least
        node = self._leaves + bisect_left(self._sizes, size)
        least[node] = first
        while node > 1:
            node >>= 1
            least[node] = _lesser(least[2 * node], least[2 * node + 1])


def _lesser(one: Entry | None, other: Entry | None) -> Entry | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
