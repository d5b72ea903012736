"""The tensor access list (Capuchin, section 4.2), kept in order while calls come, so that the next victims are found
without a look at every resident tensor.

The order itself is defined in ``plan/access_order``: this is an index behind it. It keeps two orders, one of the
tensors that this iteration has accessed and one of the others, each by size (``ordered_index``). A call changes the
places of its operands alone, so the next victim is found in a number of steps that grows with the logarithm of the
number of tensors. An entry of a tensor that has left stays until a search meets it; after an iteration's end the list
is built anew when it is wanted. Decides nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice

from minidl.memory.ordered_index import Fronts
from minidl.memory.storage import IN, Storage
from minidl.memory.tracker import Tracker
from minidl.plan.access_order import bands

NOT_YET = 1 << 62  # the first access of a tensor that this iteration has not accessed
MOST_TOUCHED = 10_000  # operands that wait for their place: if they are more, the list is built anew

Entry = tuple[int, int, weakref.ref[Storage]]  # first access, then a number of its own for each tensor


class NoAccessList:
    """In the place of an access list, for a policy that looks at every resident tensor."""

    def touch(self, storages: Iterable[Storage]) -> None:
        """Nothing is kept in order."""

    def forget(self) -> None:
        """Nothing is kept in order."""


class AccessList(NoAccessList):
    """The residents in order. ``touch`` notes a change of place; ``front`` gives the first victims."""

    def __init__(self, tracker: Tracker, residents: Iterable[weakref.ref[Storage]]) -> None:
        self.tracker = tracker
        self.residents = residents
        self._stale = True
        self._touched: list[weakref.ref[Storage]] = []
        self._entries: dict[weakref.ref[Storage], tuple[int, Entry]] = {}  # with the size of the block
        self._seen, self._unseen = Fronts(), Fronts()
        self._numbers: dict[weakref.ref[Storage], int] = {}  # in the residents' order: of equals the first one leaves

    def touch(self, storages: Iterable[Storage]) -> None:
        """These have been placed, brought in or accessed."""
        if not self._stale:
            self._touched += [s.me if type(s) is Storage else s.base.me for s in storages]
            if len(self._touched) > MOST_TOUCHED:
                self.forget()

    def forget(self) -> None:
        """An iteration has ended, so every tensor has another place."""
        self._stale = True
        for part in (self._touched, self._entries, self._seen, self._unseen, self._numbers):
            part.clear()

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, without the pinned ones."""
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
        """All, from the front; an entry of a tensor that has left is removed."""
        for order in (self._seen, self._unseen):
            for low, high in bands(nbytes):
                for size, entry in order.between(low, high):
                    storage = entry[2]()
                    if storage is None or storage.status is not IN:
                        order.remove(size, entry)
                        self._entries.pop(entry[2], None)
                    else:
                        yield storage
