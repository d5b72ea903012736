"""The residents in order for policies that evict stale tensors, kept while calls run.

    RecencyList  the least recently used first.
    PriceList    for a price divided by bytes and by staleness (DTR): classes of about equal prices for a byte, in each
                 the stalest first. With each call the staleness of all tensors grows by one, so the next victim is
                 among the first tensors of the classes. There are as many classes as the prices have magnitudes.

Source of the price: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021. Decides nothing.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice
from math import frexp

from minidl.memory.access_list import AccessList, Listed, NoAccessList, ResidentList
from minidl.memory.storage import Storage
from minidl.memory.tracker import Tracker
from minidl.plan.policy import FrontOrder, Policy

FEW = 400  # with so many residents or fewer such a policy is asked about all of them
PER_CLASS = 32  # tensors of a class of prices that are offered first, at most
SMALL_SHIFT = 10  # tensors of less than a 2^10th of the needed bytes come last


class Classes(ResidentList):
    """Several lists, in each of which the least recently used is first."""

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]]) -> None:
        super().__init__(tracker, residents)
        self._lists: dict[Hashable, list[Listed]] = {}
        self._changes = 0  # operands that were touched since entries of tensors that have left were removed

    @property
    def few(self) -> bool:
        """True if there are so few tensors on the device that the policy is asked about all of them."""
        if len(self.residents) <= FEW:  # those on the host included
            return True
        self._changes += len(self._touched)
        self._update()
        if self._changes > len(self._listed) // 2:
            self._changes = 0
            for part, listed in list(self._listed.values()):
                self._here(part, listed)  # removes it if its tensor has left
        return len(self._listed) <= FEW

    def forget(self) -> None:
        """An iteration has ended."""
        super().forget()
        self._lists.clear()

    def _class(self, storage: Storage) -> Hashable:
        """The list that has a storage."""
        raise NotImplementedError

    def _place(self, storage: Storage) -> tuple[Hashable, Listed]:
        used = max(storage.last_access, storage.replayed_at)
        return self._class(storage), (used, storage.tensor_id, storage.me)

    def _add(self, part: Hashable, entry: Listed) -> None:
        insort(self._lists.setdefault(part, []), entry)

    def _remove(self, part: Hashable, entry: Listed) -> None:
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
        """The first ``count`` victims for an allocation of ``nbytes``, except the pinned ones."""
        self._update()
        return list(islice((s for s in self._walk(None) if s not in pinned), count))


class PriceList(Classes):
    """Classes of about equal prices for a byte, in each the stalest first.

    price: the seconds of a replay. Replays and drops of other tensors change it, so the first tensors of a class are
    priced again, and go where they belong. If a price has fallen since a neighbour was recomputed, the tensor stays
    among dearer ones until it is among the first of these, or is used.
    """

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]],
                 price: Callable[[Storage], float | None]) -> None:
        super().__init__(tracker, residents)
        self._price = price

    def _class(self, storage: Storage) -> Hashable:
        seconds = self._price(storage)
        if seconds is None:  # only copies: their latency makes small tensors dearer
            return storage.host is not None, storage.nbytes.bit_length()
        _, exponent = frexp(seconds / max(storage.nbytes, 1))
        return storage.host is not None, exponent

    def batches(self, nbytes: int, pinned: set[Storage], count: int) -> Iterator[list[Storage]]:
        """The first tensors of each class, up to ``nbytes`` in each: they include the victims, whichever class is best.
        Then four times as much, and so on."""
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
        """The first tensors of a class that were not offered. settle: a tensor that has another price by now changes
        its class, and the next one takes its turn."""
        held = looked_at = at = 0
        while at < len(entries := self._lists.get(part, [])) and held < wanted and looked_at < most:
            entry = entries[at]
            storage = self._here(part, entry)
            if storage is None:
                continue
            if settle and (new := self._place(storage)) != (part, entry):
                self._remove(part, entry)
                self._listed[entry[2]] = new
                self._add(*new)
                continue
            at += 1
            looked_at += storage not in offered
            if storage not in offered and storage.nbytes >= least:
                held += storage.nbytes
                yield storage


def list_for(policy: Policy, tracker: Tracker, residents: Collection[weakref.ref[Storage]],
             price: Callable[[Storage], float | None]) -> NoAccessList:
    """The list that a policy reads from its front, if it does. price: seconds to recompute a storage."""
    if not policy.reads_from_front:
        return NoAccessList()
    if policy.regime.front is FrontOrder.PRICE:
        return PriceList(tracker, residents, price)
    return (AccessList if policy.regime.front is FrontOrder.ACCESS_LIST else RecencyList)(tracker, residents)
