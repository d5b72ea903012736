"""The tensor access list (Capuchin, section 4.2), kept in order while calls run: the next victims are found without a
look at every resident tensor.

``policies/passive`` defines the order; this is an index behind it. Two orders are kept, of the tensors that this
iteration has accessed and of the others. A call changes only the places of its operands. An entry of a tensor that has
left stays until a search meets it. After an iteration the list is built anew when it is next needed. Decides nothing.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from minidl.memory.storage import IN, Storage
from minidl.memory.tracker import Tracker
from minidl.policies.passive import bands

NOT_YET = 1 << 62  # the first access of a tensor that this iteration has not accessed
MOST_TOUCHED = 10_000  # changes that are collected between two searches; with more the list is built anew
MOST_SIZES = 10_000  # sizes that stay in an order though it has no entry of them

Listed = tuple[int, int, weakref.ref[Storage]]  # first access, its number, the tensor; sorted by the first two


class NoAccessList:
    """Replaces the access list under a policy that looks at every resident tensor."""

    def touch(self, storages: Iterable[Storage]) -> None:
        """Nothing is kept in order."""

    def forget(self) -> None:
        """Nothing is kept in order."""


class AccessList(NoAccessList):
    """The residents in order. ``touch`` notes changes of place; ``front`` returns the first victims."""

    def __init__(self, tracker: Tracker, residents: Iterable[weakref.ref[Storage]]) -> None:
        self.tracker = tracker
        self.residents = residents
        self._stale = True
        self._touched: list[weakref.ref[Storage]] = []
        self._listed: dict[weakref.ref[Storage], tuple[int, Listed]] = {}  # with the size of the block
        self._seen, self._unseen = Order(), Order()
        self._numbers: dict[weakref.ref[Storage], int] = {}  # in the order of the residents: of equals the first leaves

    def touch(self, storages: Iterable[Storage]) -> None:
        """These tensors were placed, brought in or accessed."""
        if not self._stale:
            self._touched += [s.me if type(s) is Storage else s.base.me for s in storages]
            if len(self._touched) > MOST_TOUCHED:
                self.forget()

    def forget(self) -> None:
        """An iteration has ended: every tensor has another place."""
        self._stale = True
        for part in (self._touched, self._listed, self._seen, self._unseen, self._numbers):
            part.clear()

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, except the pinned ones."""
        for ref in self.residents if self._stale else dict.fromkeys(self._touched):
            self._place(ref)
        self._stale = False
        self._touched.clear()
        return list(islice((s for s in self._in_order(nbytes) if s not in pinned), count))

    def _place(self, ref: weakref.ref[Storage]) -> None:
        number = self._numbers.setdefault(ref, len(self._numbers))
        storage = ref()
        if storage is None or storage.status is not IN or storage.block is None:
            return
        seen = storage.last_access >= self.tracker.iteration_start
        first, size = storage.first_access if seen else NOT_YET, storage.block.size
        known = self._listed.get(ref)
        if known is not None:
            if known[0] == size and known[1][0] == first:
                return
            (self._unseen if known[1][0] == NOT_YET else self._seen).remove(*known)
        listed = first, number, ref
        self._listed[ref] = size, listed
        (self._seen if seen else self._unseen).add(size, listed)

    def _in_order(self, nbytes: int) -> Iterator[Storage]:
        """All residents from the front. Removes entries of tensors that have left."""
        for order in (self._seen, self._unseen):
            for low, high in bands(nbytes):
                for size, listed in order.between(low, high):
                    storage = listed[2]()
                    if storage is None or storage.status is not IN:
                        order.remove(size, listed)
                        self._listed.pop(listed[2], None)
                    else:
                        yield storage


class Order:
    """Entries by size, and ``between``: the entries of a range of sizes, least first.

    Each size has a sorted list. A binary tree over the sizes holds at each node the least entry below it, so the least
    entry of a range is found in the few nodes that cover the range. A new size makes the tree anew.
    """

    def __init__(self) -> None:
        self._lists: dict[int, list[Listed]] = {}
        self._sizes: list[int] = []
        self._least: list[Listed | None] = []  # node 1 is the root, 2n and 2n + 1 are below n; the leaves are the sizes
        self._leaves = 0  # the number of the first leaf; 0 if the tree is to be made

    def add(self, size: int, listed: Listed) -> None:
        """Add an entry of this size."""
        entries = self._lists.get(size)
        if entries is None:
            entries = self._lists[size] = []
            insort(self._sizes, size)
            self._leaves = 0
        insort(entries, listed)
        if self._leaves and entries[0] is listed:
            self._update(size, listed)

    def remove(self, size: int, listed: Listed) -> None:
        """Remove an entry that is there."""
        entries = self._lists[size]
        index = bisect_left(entries, listed)
        del entries[index]
        if self._leaves and not index:
            self._update(size, entries[0] if entries else None)

    def clear(self) -> None:
        """Remove all entries, but remember the sizes: they will come again."""
        if len(self._sizes) > MOST_SIZES:
            self._lists.clear()
            self._sizes.clear()
        for entries in self._lists.values():
            entries.clear()
        self._leaves = 0

    def between(self, low: int, high: float) -> Iterator[tuple[int, Listed]]:
        """Entries of sizes from ``low`` to less than ``high``, least first, each with its size. Meanwhile an entry that
        was returned may be removed, and nothing else may change."""
        if not self._leaves:
            self._build()
        least, leaves, sizes = self._least, self._leaves, self._sizes
        begin, end = leaves + bisect_left(sizes, low), leaves + bisect_left(sizes, high)
        heap: list[tuple[Listed, int]] = []
        while begin < end:  # the nodes that cover the range, from the leaves up
            for node in (begin if begin & 1 else 0, end - 1 if end & 1 else 0):
                if node and (listed := least[node]) is not None:
                    heap.append((listed, node))
            begin, end = begin + 1 >> 1, end >> 1
        heapify(heap)
        while heap:
            listed, node = heappop(heap)
            if node < leaves:
                for below in (2 * node, 2 * node + 1):
                    if (first := least[below]) is not None:
                        heappush(heap, (first, below))
                continue
            size = sizes[node - leaves]
            yield size, listed
            entries = self._lists[size]
            index = bisect_right(entries, listed)
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

    def _update(self, size: int, first: Listed | None) -> None:
        least = self._least
        node = self._leaves + bisect_left(self._sizes, size)
        least[node] = first
        while node > 1:
            node >>= 1
            least[node] = _lesser(least[2 * node], least[2 * node + 1])


def _lesser(one: Listed | None, other: Listed | None) -> Listed | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
