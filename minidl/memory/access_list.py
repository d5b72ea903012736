"""Lists of the tensors on the device in the order of eviction, so that no search looks at all tensors.

``AccessList`` is the tensor access list (Capuchin, section 4.2); ``policies/passive`` defines its order.
``memory/stalest`` has the lists of policies that weigh staleness. A call changes only the places of its operands. An
entry of a tensor that has left the device is removed when a search meets it. At the end of an iteration a list is
emptied, and it is built again when next needed.
"""

import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

from minidl.memory.storage import IN, Storage
from minidl.memory.tracker import Tracker
from minidl.policies.passive import bands

NOT_YET = 1 << 62  # stands for the first access of a tensor that this iteration has not accessed
MOST_TOUCHED = 10_000  # changes that are collected between two searches; with more the list is built anew
MOST_SIZES = 10_000  # an ``Order`` with more sizes than this forgets them when it is cleared

Listed = tuple[int, int, weakref.ref[Storage]]  # an entry: sort key, tie-breaking number, tensor


class NoAccessList:
    """The list of a policy that ranks all tensors on the device itself: it keeps nothing in order."""

    stale = True  # as nothing is kept in order, ``touch`` need not be called

    @property
    def few(self) -> bool:
        """True if the policy gets all tensors on the device at once, as they are few; here always."""
        return True

    def touch(self, storages: Iterable[Storage]) -> None:
        """Does nothing, as no order is kept."""

    def forget(self) -> None:
        """Does nothing, as no order is kept."""


class ResidentList(NoAccessList):
    """A list of the tensors on the device, in the order in which they leave. stale: the next search rebuilds it."""

    def __init__(self, tracker: Tracker, live_refs: Collection[weakref.ref[Storage]]) -> None:
        self.tracker = tracker
        self.live_refs = live_refs
        self.stale = True
        self._touched: list[weakref.ref[Storage]] = []
        self._listed: dict[weakref.ref[Storage], tuple[Hashable, Listed]] = {}  # with the part of the order that has it

    def touch(self, storages: Iterable[Storage]) -> None:
        """Note that these tensors were placed, swapped in or accessed, so that their places may have changed."""
        if not self.stale:
            self._touched += [s.me if type(s) is Storage else s.base.me for s in storages]
            if len(self._touched) > MOST_TOUCHED:
                self.forget()

    def forget(self) -> None:
        """Empty the list as an iteration ends, which changes every tensor's place; the next search rebuilds it."""
        self.stale = True
        self._touched.clear()
        self._listed.clear()

    def batches(self, nbytes: int, pinned: set[Storage], count: int) -> Iterator[list[Storage]]:
        """Yield victims for ``nbytes``, none of them pinned: about ``count``, then four times as many, and so on."""
        offered = set(pinned)
        while front := self.front(nbytes, offered, count):
            offered.update(front)
            yield front
            count *= 4

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, except the pinned ones."""
        raise NotImplementedError

    def _update(self) -> None:
        """Move all tensors that were touched since the last search to their new places in the list."""
        for ref in self.live_refs if self.stale else dict.fromkeys(self._touched):
            storage = ref()
            if storage is not None and storage.status is IN and storage.block is not None:
                new, known = self._place(storage), self._listed.get(ref)
                if new != known:
                    if known is not None:
                        self._remove(*known)
                    self._listed[ref] = new
                    self._add(*new)
        self.stale = False
        self._touched.clear()

    def _here(self, part: Any, listed: Listed) -> Storage | None:
        """Return the storage of an entry; None if it has left the device, and then the entry is removed.
        part: the part of the order that has the entry (for an ``AccessList``, the size of its block)."""
        storage = listed[2]()
        if storage is not None and storage.status is IN:
            return storage
        self._remove(part, listed)
        self._listed.pop(listed[2], None)
        return None

    def _place(self, storage: Storage) -> tuple[Any, Listed]:
        raise NotImplementedError

    def _add(self, part: Any, listed: Listed) -> None:
        raise NotImplementedError

    def _remove(self, part: Any, listed: Listed) -> None:
        raise NotImplementedError


class AccessList(ResidentList):
    """The tensor access list of passive mode: an index that yields tensors in the order of ``policies/passive``.

    Tensors that this iteration has accessed come before all others. Within each group those of one to two times the
    needed bytes come first, then smaller ones, then larger ones, each by their first access.
    """

    few = False

    def __init__(self, tracker: Tracker, live_refs: Collection[weakref.ref[Storage]]) -> None:
        super().__init__(tracker, live_refs)
        self._seen, self._unseen = Order(), Order()
        self._numbers: dict[weakref.ref[Storage], int] = {}  # to break ties: tensors numbered in the order they came

    def forget(self) -> None:
        """Empty the list as an iteration ends, which changes every tensor's place; the next search rebuilds it."""
        super().forget()
        for part in (self._seen, self._unseen, self._numbers):
            part.clear()

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, except the pinned ones."""
        for ref in self.live_refs if self.stale else self._touched:
            self._numbers.setdefault(ref, len(self._numbers))  # one that is away too: it keeps its turn
        self._update()
        return list(islice((s for s in self._in_order(nbytes) if s not in pinned), count))

    def _place(self, storage: Storage) -> tuple[int, Listed]:
        assert storage.block is not None
        seen = storage.last_access >= self.tracker.iteration_start
        return storage.block.size, (storage.first_access if seen else NOT_YET, self._numbers[storage.me],
                                    storage.me)

    def _add(self, part: int, listed: Listed) -> None:
        (self._unseen if listed[0] == NOT_YET else self._seen).add(part, listed)

    def _remove(self, part: int, listed: Listed) -> None:
        (self._unseen if listed[0] == NOT_YET else self._seen).remove(part, listed)

    def _in_order(self, nbytes: int) -> Iterator[Storage]:
        """Yield all tensors on the device in the order of eviction for ``nbytes``, the first to leave first."""
        for order in (self._seen, self._unseen):
            for low, high in bands(nbytes):
                for size, listed in order.between(low, high):
                    storage = self._here(size, listed)
                    if storage is not None:
                        yield storage


class Order:
    """An index of entries by the size of their block; ``between`` yields the entries of a range of sizes in order.

    Each size has a sorted list. A binary tree over the sizes holds at each node the least entry below it, so the least
    entry of a range is found in the few nodes that cover the range. When a new size comes, the tree is built anew.
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
        """Remove an entry, which must be in the index."""
        entries = self._lists[size]
        index = bisect_left(entries, listed)
        del entries[index]
        if self._leaves and not index:
            self._update(size, entries[0] if entries else None)

    def clear(self) -> None:
        """Remove all entries, but keep the sizes, as the next iteration has the same ones."""
        if len(self._sizes) > MOST_SIZES:
            self._lists.clear()
            self._sizes.clear()
        for entries in self._lists.values():
            entries.clear()
        self._leaves = 0

    def between(self, low: int, high: float) -> Iterator[tuple[int, Listed]]:
        """Yield (size, entry) for sizes from ``low`` to less than ``high``, the least entry first.
        Meanwhile entries that were yielded may be removed; nothing else may change."""
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
