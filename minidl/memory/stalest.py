"""The residents in order for policies that evict what is stale, kept while calls come.

    RecencyList  the least recently used first.
    PriceList    for a price divided by bytes and by staleness (DTR): for each class of about equal prices for a byte,
                 the stalest first. Staleness grows by one with each call for all of a class, so the next victim is
                 among the first ones of the classes, and there are as many classes as the prices have magnitudes.

Source of the price: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021. Decides nothing.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice
from math import frexp

from minidl.memory.access_list import AccessList, Entry, Kept, NoAccessList
from minidl.memory.storage import Storage
from minidl.memory.tracker import Tracker
from minidl.plan.policy import Front, Policy

FEW = 400  # residents that such a policy is asked about one and all
PER_CLASS = 32  # tensors of a class of prices that are shown first, at most
SMALL_SHIFT = 10  # tensors of less than a 2^10th of the bytes that are wanted come last


class Classes(Kept):
    """Several lists, in each of which the least recently used is first."""

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]]) -> None:
        super().__init__(tracker, residents)
        self._lists: dict[Hashable, list[Entry]] = {}
        self._changes = 0  # operands that have been touched since

    @property
    def few(self) -> bool:
        """Whether there is so little on the device that the policy may be shown all of it."""
        if len(self.residents) <= FEW:  # the host's included
            return True
        self._changes += len(self._touched)
        self._update()
        if self._changes > len(self._entries) // 2:  # now and then those that have left are looked for
            self._changes = 0
            for part, entry in list(self._entries.values()):
                self._here(part, entry)
        return len(self._entries) <= FEW

    def forget(self) -> None:
        """An iteration has ended."""
        super().forget()
        self._lists.clear()

    def _class(self, storage: Storage) -> Hashable:
        """The list that has a storage."""
        raise NotImplementedError

    def _place(self, storage: Storage) -> tuple[Hashable, Entry]:
        used = max(storage.last_access, storage.replayed_at)
        return self._class(storage), (used, storage.tensor_id, storage.me)

    def _add(self, part: Hashable, entry: Entry) -> None:
        insort(self._lists.setdefault(part, []), entry)

    def _remove(self, part: Hashable, entry: Entry) -> None:
        entries = self._lists[part]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._lists[part]

    def _walk(self, part: Hashable) -> Iterator[Storage]:
        """One list, from its front."""
        at = 0
        while at < len(entries := self._lists.get(part, [])):
            storage = self._here(part, entries[at])
            if storage is not None:
                at += 1
                yield storage


class RecencyList(Classes):
    """The least recently used first; of equals the one of the smallest id."""

    def _class(self, storage: Storage) -> Hashable:
        return None

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, without the pinned ones."""
        self._update()
        return list(islice((s for s in self._walk(None) if s not in pinned), count))


class PriceList(Classes):
    """Classes of about equal prices for a byte, of each the stalest first.

    ``price`` gives the seconds of a replay, which others change: what is among the first of its class is priced again,
    and goes where it belongs. So a tensor whose price has fallen, because a neighbour has been made again, stays among
    dearer ones until it is among the first of these or is used.
    """

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]],
                 price: Callable[[Storage], float | None]) -> None:
        super().__init__(tracker, residents)
        self._price = price

    def _class(self, storage: Storage) -> Hashable:
        seconds = self._price(storage)
        if seconds is None:  # copies alone: their latency makes small ones dearer
            return storage.host is not None, storage.nbytes.bit_length()
        _, exponent = frexp(seconds / max(storage.nbytes, 1))
        return storage.host is not None, exponent

    def batches(self, nbytes: int, pinned: set[Storage], count: int) -> Iterator[list[Storage]]:
        """The first ones of each class, until those of the class have ``nbytes``: whichever class is best, what leaves
        is among them. Then four times as much, and so on."""
        offered, wanted, most, least = set(pinned), nbytes, PER_CLASS, nbytes >> SMALL_SHIFT
        self._update()
        while True:
            for part in list(self._lists):
                list(self._first(part, wanted, most, least, offered, settle=True))
            shown = [self._first(part, wanted, most, least, offered, settle=False) for part in list(self._lists)]
            found = [storage for first in shown for storage in first]
            if found:
                offered.update(found)
                yield found
            elif not least:
                return
            wanted, most, least = 4 * wanted, 4 * most, 0

    def _first(self, part: Hashable, wanted: int, most: int, least: int, offered: set[Storage], *, settle: bool
               ) -> Iterator[Storage]:
        """The first ones of a class that have not been offered. settle: what has another price by now changes its
        class, so that the next ones come forward."""
        held = looked_at = at = 0
        while at < len(entries := self._lists.get(part, [])) and held < wanted and looked_at < most:
            entry = entries[at]
            storage = self._here(part, entry)
            if storage is None:
                continue
            if settle and (new := self._place(storage)) != (part, entry):
                self._remove(part, entry)
                self._entries[entry[2]] = new
                self._add(*new)
                continue
            at += 1
            looked_at += storage not in offered
            if storage not in offered and storage.nbytes >= least:
                held += storage.nbytes
                yield storage


def list_for(policy: Policy, tracker: Tracker, residents: Collection[weakref.ref[Storage]],
             price: Callable[[Storage], float | None]) -> NoAccessList:
    """The list that a policy reads from its front, if it does. price: seconds to make a storage again."""
    if not policy.reads_from_front:
        return NoAccessList()
    if policy.regime.front is Front.PRICE:
        return PriceList(tracker, residents, price)
    return (AccessList if policy.regime.front is Front.ACCESS_LIST else RecencyList)(tracker, residents)
