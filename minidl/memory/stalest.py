"""Lists of the tensors on the device for policies that evict stale tensors, kept in order while calls run.

    RecencyList  the least recently used tensor first.
    PriceList    for policies that evict the least price / (bytes * staleness), as DTR does. Tensors whose price per
                 byte lies between the same powers of two form a class, and in each class the stalest is first. With
                 each call the staleness of all tensors grows by one, so the next victim is at the front of a class.

Staleness is the number of calls since a tensor's last use. Source of the price: Kirisame et al., Dynamic Tensor
Rematerialization, ICLR 2021.
"""

import weakref
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice
from math import frexp

from minidl.memory.access_list import AccessList, Listed, NoAccessList, ResidentList
from minidl.memory.storage import Storage
from minidl.memory.tracker import Tracker
from minidl.plan.policy import FrontOrder, Policy

FEW = 400  # with so many tensors on the device or fewer, such a policy is asked about all of them
PER_CLASS = 32  # how many tensors of each class of prices are offered first, at most
SMALL_SHIFT = 10  # tensors of less than 1/2^10 of the needed bytes come last


class Classes(ResidentList):
    """A list of tensors for each class, the least recently used first; a subclass defines a tensor's class."""

    def __init__(self, tracker: Tracker, live_refs: Collection[weakref.ref[Storage]]) -> None:
        super().__init__(tracker, live_refs)
        self._lists: dict[Hashable, list[Listed]] = {}
        self._changes = 0  # operands that were touched since entries of tensors that have left were removed

    @property
    def few(self) -> bool:
        """True if there are so few tensors on the device that the policy is asked about all of them."""
        if len(self.live_refs) <= FEW:  # those on the host included
            return True
        self._changes += len(self._touched)
        self._update()
        if self._changes > len(self._listed) // 2:
            self._changes = 0
            for part, listed in list(self._listed.values()):
                self._here(part, listed)  # removes it if its tensor has left
        return len(self._listed) <= FEW

    def forget(self) -> None:
        """Empty the lists, as an iteration has ended; they are built anew when needed."""
        super().forget()
        self._lists.clear()

    def _class(self, storage: Storage) -> Hashable:
        """The key of the class that a storage is in."""
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
        """Yield the tensors of one class, the least recently used first."""
        at = 0
        while at < len(entries := self._lists.get(part, [])):
            storage = self._here(part, entries[at])
            if storage is not None:
                at += 1
                yield storage


class RecencyList(Classes):
    """All tensors in one class, so the least recently used first; of equals the one of the smallest id."""

    def _class(self, storage: Storage) -> Hashable:
        return None

    def front(self, nbytes: int, pinned: set[Storage], count: int) -> list[Storage]:
        """The first ``count`` victims for an allocation of ``nbytes``, except the pinned ones."""
        self._update()
        return list(islice((s for s in self._walk(None) if s not in pinned), count))


class PriceList(Classes):
    """Classes of tensors with about equal price per byte, in each class the stalest first.

    price: returns the replay seconds of a storage, or None. Drops and replays of other tensors change this price, so
    the first tensors of each class are priced again before a search, and change their class if need be. A tensor
    further back keeps its old class until it comes to the front, or is used."""

    def __init__(self, tracker: Tracker, live_refs: Collection[weakref.ref[Storage]],
                 price: Callable[[Storage], float | None]) -> None:
        super().__init__(tracker, live_refs)
        self._price = price

    def _class(self, storage: Storage) -> Hashable:
        seconds = self._price(storage)
        if seconds is None:  # only copies: their latency makes small tensors dearer
            return storage.host is not None, storage.nbytes.bit_length()
        _, exponent = frexp(seconds / max(storage.nbytes, 1))
        return storage.host is not None, exponent

    def batches(self, nbytes: int, pinned: set[Storage], count: int) -> Iterator[list[Storage]]:
        """Yield the first tensors of each class, up to ``nbytes`` in each; then of four times as many bytes, and so on.
        pinned: tensors that are not victims. ``count`` is ignored."""
        offered, wanted, most, least = set(pinned), nbytes, PER_CLASS, nbytes >> SMALL_SHIFT
        self._update()
        while True:
            found, moved = self._firsts(wanted, most, least, offered, settle=True)
            if moved:
                found, _ = self._firsts(wanted, most, least, offered, settle=False)
            if found:
                offered.update(found)
                yield found
            elif not least:
                return
            wanted, most, least = 4 * wanted, 4 * most, 0

    def _firsts(self, wanted: int, most: int, least: int, offered: set[Storage], *, settle: bool
                ) -> tuple[list[Storage], bool]:
        """The first tensors of each class that are not in ``offered``: up to ``wanted`` bytes and ``most`` tensors.
        least: the fewest bytes of a tensor. settle: tensors whose price has changed move to their new class instead;
        the second result is True if one has."""
        found, moved = [], False
        for part in list(self._lists):
            held = looked_at = at = 0
            while held < wanted and looked_at < most and at < len(entries := self._lists.get(part, ())):
                entry = entries[at]
                storage = self._here(part, entry)
                if storage is None:
                    continue
                if settle and (new := self._class(storage)) != part:
                    self._remove(part, entry)
                    self._listed[entry[2]] = new, entry
                    self._add(new, entry)
                    moved = True
                    continue
                at += 1
                if storage not in offered:
                    looked_at += 1
                    if storage.nbytes >= least:
                        held += storage.nbytes
                        found.append(storage)
        return found, moved


def list_for(policy: Policy, tracker: Tracker, live_refs: Collection[weakref.ref[Storage]],
             price: Callable[[Storage], float | None]) -> NoAccessList:
    """Make the list from whose front a policy evicts; a NoAccessList if the policy looks at all tensors instead.
    price: returns the seconds to recompute a storage, or None."""
    if not policy.reads_from_front:
        return NoAccessList()
    if policy.regime.front is FrontOrder.PRICE:
        return PriceList(tracker, live_refs, price)
    return (AccessList if policy.regime.front is FrontOrder.ACCESS_LIST else RecencyList)(tracker, live_refs)
