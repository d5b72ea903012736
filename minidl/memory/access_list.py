"""The residents in order, kept while calls come, so that the next victims are found without a look at every resident.

``AccessList`` is the tensor access list (Capuchin, section 4.2). The order itself is defined in ``plan/access_order``:
this is an index behind it. It keeps two orders, one of the tensors that this iteration has accessed and one of the
others, each by size (``ordered_index``). ``memory/stalest`` has the lists of policies that weigh staleness.

A call changes the places of its operands alone, so the next victim is found in a number of steps that grows with the
logarithm of the number of tensors. An entry of a tensor that has left stays until a search meets it; after an
iteration's end the list is built anew when it is wanted. Decides nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

from minidl.memory.ordered_index import Fronts
from minidl.memory.storage import IN, Storage
from minidl.memory.tracker import Tracker
from minidl.plan.access_order import bands

NOT_YET = 1 << 62  # the first access of a tensor that this iteration has not accessed
MOST_TOUCHED = 10_000  # operands that wait for their place: if they are more, the list is built anew


Entry = tuple[int, int, weakref.ref[Storage]]  # by what comes first; then a number of its own for each tensor


class NoAccessList:
    """In the place of an access list, for a policy that looks at every resident tensor."""

    @property
    def few(self) -> bool:
        """Whether all residents may be shown to the policy at once."""
        return True

    def touch(self, storages: Iterable[Storage]) -> None:
        """Nothing is kept in order."""

    def forget(self) -> None:
        """Nothing is kept in order."""


class Kept(NoAccessList):
    """The residents in an order that the subclasses have. ``touch`` notes a change of place."""

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]]) -> None:
        self.tracker = tracker
        self.residents = residents
        self._stale = True
        self._touched: list[weakref.ref[Storage]] = []
        self._entries: dict[weakref.ref[Storage], tuple[Hashable, Entry]] = {}  # with the part of the order that has it

    def touch(self, storages: Iterable[Storage]) -> None:
        """These have been placed, brought in or accessed."""
        if not self._stale:
            self._touched += [s.me if type(s) is Storage else s.base.me for s in storages]
            if len(self._touched) > MOST_TOUCHED:
                self.forget()

    def forget(self) -> None:
        """An iteration has ended, so every tensor has another place."""
        self._stale = True
        self._touched.clear()
        self._entries.clear()

    def _update(self) -> None:
        """Give all that was touched its place."""
        for ref in self.residents if self._stale else dict.fromkeys(self._touched):
            storage = ref()
            if storage is not None and storage.status is IN and storage.block is not None:
                new, known = self._place(storage), self._entries.get(ref)
                if new != known:
                    if known is not None:
                        self._remove(*known)
                    self._entries[ref] = new
                    self._add(*new)
        self._stale = False
        self._touched.clear()

    def _here(self, part: Any, entry: Entry) -> Storage | None:
        """The storage of an entry; of one that has left the entry is removed."""
        storage = entry[2]()
        if storage is not None and storage.status is IN:
            return storage
        self._remove(part, entry)
        self._entries.pop(entry[2], None)
        return None

    def _place(self, storage: Storage) -> tuple[Any, Entry]:
        raise NotImplementedError

    def _add(self, part: Any, entry: Entry) -> None:
        raise NotImplementedError

    def _remove(self, part: Any, entry: Entry) -> None:
        raise NotImplementedError

    def batches(self, nbytes: int, pinned: set[Storage], count: int) -> Iterator[list[Storage]]:
        """Victims for an allocation of ``nbytes``, without the pinned ones: about ``count`` first, then about four
        times as many, and so on."""
        offered = set(pinned)
        while front := self.front(nbytes, offered, count):
            offered.update(front)
            yield front
            count *= 4

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, without the pinned ones."""
        raise NotImplementedError


class AccessList(Kept):
    """The tensor access list."""

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]]) -> None:
        super().__init__(tracker, residents)
        self._seen, self._unseen = Fronts(), Fronts()
        self._numbers: dict[weakref.ref[Storage], int] = {}  # in the residents' order: of equals the first one leaves

    @property
    def few(self) -> bool:
        """Never: the front is enough."""
        return False

    def forget(self) -> None:
        """An iteration has ended, so every tensor has another place."""
        super().forget()
        for part in (self._seen, self._unseen, self._numbers):
            part.clear()

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, without the pinned ones."""
        self._update()
        return list(islice((s for s in self._in_order(nbytes) if s not in pinned), count))

    def _place(self, storage: Storage) -> tuple[int, Entry]:
        assert storage.block is not None
        number = self._numbers.setdefault(storage.me, len(self._numbers))
        seen = storage.last_access >= self.tracker.iteration_start
        return storage.block.size, (storage.first_access if seen else NOT_YET, number, storage.me)

    def _add(self, part: int, entry: Entry) -> None:
        self._order(entry).add(part, entry)

    def _remove(self, part: int, entry: Entry) -> None:
        self._order(entry).remove(part, entry)

    def _order(self, entry: Entry) -> Fronts:
        return self._unseen if entry[0] == NOT_YET else self._seen

    def _in_order(self, nbytes: int) -> Iterator[Storage]:
        """All, from the front."""
        for order in (self._seen, self._unseen):
            for low, high in bands(nbytes):
                for size, entry in order.between(low, high):
                    storage = self._here(size, entry)
                    if storage is not None:
                        yield storage
