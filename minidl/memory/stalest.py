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
PER_CLASS = 8  # tensors of a class of prices that are shown first, at most
SMALL_SHIFT = 10  # tensors of less than a 2^10th of the bytes that are wanted come last


class Classes(Kept):
    """Several lists, in each of which the least recently used is first."""

    def __init__(self, tracker: Tracker, residents: Collection[weakref.ref[Storage]]) -> None:
        super().__init__(tracker, residents)
        self._lists: dict[Hashable, list[Entry]] = {}

    @property
    def few(self) -> bool:
        """Whether there are so few residents that the policy may be shown all of them."""
        return len(self.residents) <= FEW

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

    ``price`` gives the seconds of a replay. Where a tensor that is shown has another price by now, it changes its class
    before the list is looked at again; where a price has fallen, because a neighbour has been made again, the tensor
    stays among the dearer ones until it is among the first of these or is used.
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
        offered, wanted, least = set(pinned), nbytes, nbytes >> SMALL_SHIFT
        most = PER_CLASS
        self._update()
        while True:
            found: list[Storage] = []
            more = False
            for part in list(self._lists):
                held = 0
                for looked_at, storage in enumerate(self._walk(part)):
                    if held >= wanted or looked_at >= most:
                        more = True
                        break
                    if storage not in offered and storage.nbytes >= least:
                        found.append(storage)
                        held += storage.nbytes
            self._touched += [storage.me for storage in found]
            if found:
                offered.update(found)
                yield found
            if not more and not least:
                return
            wanted, most, least = 4 * wanted, 4 * most, 0


def list_for(policy: Policy, tracker: Tracker, residents: Collection[weakref.ref[Storage]],
             price: Callable[[Storage], float | None]) -> NoAccessList:
    """The list that a policy reads from its front, if it does. price: seconds to make a storage again."""
    if not policy.reads_from_front:
        return NoAccessList()
    if policy.regime.front is Front.PRICE:
        return PriceList(tracker, residents, price)
    return (AccessList if policy.regime.front is Front.ACCESS_LIST else RecencyList)(tracker, residents)
