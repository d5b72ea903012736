"""The tensor access list (Capuchin, section 4.2), kept in order while calls come: who would leave first, without asking
about everybody.

Passive mode takes tensors of about the size that is wanted, then smaller ones, then larger, each from the front: what
this iteration accessed first. What it has not accessed yet comes after all of these. So there are two orders, each by
size (``fronts``), and a call changes the places of its operands alone: who leaves is found in steps of the logarithm of
the number of tensors. Entries of what has left stay until somebody comes by; after an iteration's end the list is made
anew when it is wanted. Decides nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf

from minidl.memory.ordered_index import Fronts
from minidl.memory.storage import IN, Storage
from minidl.memory.tracker import Tracker

NOT_YET = 1 << 62  # the first access of what has none
MOST_TOUCHED = 10_000  # operands that wait for their place: if they are more, the list is made anew

Entry = tuple[int, int, weakref.ref[Storage]]  # first access, then by number: a tensor's is given once


class AccessList:
    """The residents in order. ``touch`` notes whose place may have changed; ``front`` gives the first."""

    def __init__(self, tracker: Tracker, residents: Iterable[weakref.ref[Storage]]) -> None:
        self.tracker = tracker
        self.residents = residents
        self._stale = True
        self._touched: list[weakref.ref[Storage]] = []
        self._entries: dict[weakref.ref[Storage], tuple[int, Entry]] = {}  # with the size of the block
        self._seen, self._unseen = Fronts(), Fronts()
        self._numbers: dict[weakref.ref[Storage], int] = {}  # in the residents' order: of equals the first leaves first

    def touch(self, storages: Iterable[Storage]) -> None:
        """These have been placed, brought in or accessed."""
        if not self._stale:
            self._touched += [s.me if type(s) is Storage else s.base.me for s in storages]
            if len(self._touched) > MOST_TOUCHED:
                self.forget()

    def forget(self) -> None:
        """Everything has another place now, as an iteration has ended."""
        self._stale = True
        for part in (self._touched, self._entries, self._seen, self._unseen, self._numbers):
            part.clear()

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` of those that are not pinned, for an allocation of ``nbytes``."""
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
        known = self._entries.get(ref)
        if known is not None:
            if known[0] == size and known[1][0] == first:
                return
            self._order(known[1]).remove(*known)
        entry = first, number, ref
        self._entries[ref] = size, entry
        self._order(entry).add(size, entry)

    def _order(self, entry: Entry) -> Fronts:
        return self._unseen if entry[0] == NOT_YET else self._seen

    def _in_order(self, nbytes: int) -> Iterator[Storage]:
        """All, from the front; what is no longer there loses its entry."""
        for order in (self._seen, self._unseen):
            for low, high in (nbytes, 2 * nbytes + 1), (0, nbytes), (2 * nbytes + 1, inf):
                for size, entry in order.between(low, high):
                    storage = entry[2]()
                    if storage is None or storage.status is not IN:
                        order.remove(size, entry)
                        self._entries.pop(entry[2], None)
                    else:
                        yield storage
