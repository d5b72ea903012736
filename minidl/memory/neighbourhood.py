"""The price of a drop in seconds of replay: the evicted neighbourhood of DTR.

    price of t  =  seconds of its own call  +  seconds of all dropped calls connected with it
                                               (those that it needs, and those that need it)

A tensor between two dropped ones is expensive to drop: a replay would have to run all three calls. Connected dropped
calls form a region, and regions that meet are united (union-find). When a call is replayed, its seconds are subtracted
from its region; the region is not split. So a price is a sum over the few regions next to a tensor, which is faster
than a walk along its lineage.

A tensor has no price, and is not dropped, if one of its inputs will soon be freed: an input that is neither a leaf nor
saved for a gradient. Once that input is freed, a replay might have to run half of the iteration. Gradients are of this
kind. So is a tensor that is needed longer than all calls that saved its input: gradients are taken newest call first.
For tensors that live long, the test also follows inputs that are freed already.

Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, section 4.1 and appendix (the e* neighbourhood and
its approximation by classes of equivalence). Knows records and modelled seconds; drops nothing and replays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from weakref import ref

from minidl.memory.lineage import missing_calls
from minidl.memory.storage import RECOMPUTE, Call, Storage
from minidl.plan.policy import Price

MOST_FREED = 64  # freed calls that the test of one price follows
MOST_WALKED = 64  # dropped calls that one exact price looks at, above the tensor and as many below it


class Region:
    """A set of connected dropped calls, as the sum of their device ``seconds``.

    into: the parent in a union-find: the region that this one was united into, or None."""

    __slots__ = ("into", "seconds")

    def __init__(self) -> None:
        self.into: Region | None = None
        self.seconds = 0.0

    def root(self) -> Region:
        """The region that this one was united into, or itself."""
        region = self
        while region.into is not None:
            if region.into.into is not None:
                region.into = region.into.into  # halves the path of later searches
            region = region.into
        return region

    def unite(self, other: Region) -> None:
        """Unite this region with another: their seconds are added."""
        mine, theirs = self.root(), other.root()
        if mine is not theirs:
            mine.into = theirs
            theirs.seconds += mine.seconds


def lost(storage: Storage) -> None:
    """Note that a storage was dropped: unite its call with the dropped calls that it needs and those that need it."""
    first = storage.call
    if first is None or first.region is not None:
        return
    region = Region()
    missing = [first]
    while missing:
        call = missing.pop()
        if call.region is not None:
            call.region.unite(region)
            continue
        call.region = region
        region.root().seconds += _seconds(call)
        me = ref(call)
        for given in call.inputs:
            base = given.base
            if base.missing_readers is None:
                base.missing_readers = {}
            base.missing_readers[me] = None
            if base.status is RECOMPUTE and base.call is not None:
                missing.append(base.call)
    for output in first.outputs:
        made = output()
        for below in _regions_below(made) if made is not None else ():
            below.unite(region)


def read_again(storage: Storage) -> None:
    """Note on the inputs of a storage's call that its replay would read them: the storage has no bytes any more.
    The same goes for those inputs that have no bytes either, so that ``starts_a_replay`` finds every reader."""
    missing = [storage]
    while missing:
        call = missing.pop().call
        if call is None:
            continue
        me = ref(call)
        for given in call.inputs:
            base = given.base
            if base.missing_readers is None:
                base.missing_readers = {}
            if me not in base.missing_readers:
                base.missing_readers[me] = None
                if base.status is RECOMPUTE:
                    missing.append(base)


def starts_a_replay(storage: Storage) -> bool:
    """True if the replay of a dropped tensor on which the program has handles would read the bytes of ``storage``."""
    return _needed_below(storage, set(), most=inf, follows=lambda call: True)


def _needed_below(storage: Storage, seen: set[Call], *, most: float, follows: Callable[[Call], bool]) -> bool:
    """True if a dropped tensor that has handles would be computed from ``storage``, by calls that are not in ``seen``.
    follows: accepts the calls to follow. seen: gets the calls that were followed; beyond ``most`` the search ends."""
    below = [storage]
    while below and len(seen) <= most:
        for reader in below.pop().missing_readers or ():
            call = reader()
            if call is None or call in seen or not follows(call):
                continue
            seen.add(call)
            for made in (output() for output in call.outputs):
                if made is not None and made.status is RECOMPUTE:
                    if made.refs:
                        return True
                    below.append(made)
    return False


def found(storage: Storage) -> None:
    """Note that a dropped storage has its bytes again: subtract its call's seconds from its region."""
    call = storage.call
    if call is None or call.region is None:
        return
    region = call.region.root()
    region.seconds = max(0.0, region.seconds - _seconds(call))  # not below 0 by rounding
    call.region = None


def price(storage: Storage, *, joins: bool = True, walks: Walks | None = None) -> float | None:
    """Device seconds to replay a storage with the dropped calls around it; None if it must not be dropped.
    joins: if an input was freed, add its call to the regions first. With False no region changes, and such calls do
    not count; this is for tensors that are only compared, and probably not evicted. walks: counts the calls looked at.
    A price does not prove that a replay is possible: ``lineage.missing_calls`` is asked before the drop."""
    call = storage.call
    if call is None or not call.op.replayable:
        return None
    for given in call.inputs:
        base = given.base
        if base.mutated_at > call.sequence:
            return None
        if base.call is None:
            continue
        if base.status is not RECOMPUTE:
            if _goes_before(base, storage):
                return None
        elif storage.saved and not base.refs and _starts_from_what_goes(base.call, storage, walks):
            return None
    return _with_regions(storage, call, joins=joins)


def _with_regions(storage: Storage, call: Call, *, joins: bool = True) -> float:
    """Seconds of a storage's own call and of the regions next to it. joins: as in ``price``."""
    around: list[Region] = []
    for given in call.inputs:
        base = given.base
        if base.call is None or base.status is not RECOMPUTE:
            continue
        if base.call.region is None:  # freed after its readers had been dropped
            if not joins:
                continue
            lost(base)
            assert base.call.region is not None
        region = base.call.region.root()
        if region not in around:
            around.append(region)
    for below in _regions_below(storage):
        region = below.root()
        if region not in around:
            around.append(region)
    return _seconds(call) + sum(region.seconds for region in around)


def _goes_before(base: Storage, storage: Storage) -> bool:
    """True if an input, ``base``, of the call that made ``storage`` will have its last use before ``storage`` has."""
    return not base.saved or bool(storage.saved) and base.saved_by > storage.saved_by


def _starts_from_what_goes(call: Call, storage: Storage, walks: Walks | None) -> bool:
    """True if replaying ``storage`` would start from a tensor that will be freed while ``storage`` is still needed.
    call: the call that made an input that is already freed; the search goes on from it through other freed inputs.
    Also True if it meets more than MOST_FREED freed calls."""
    freed, seen = [call], {call}
    while freed:
        for given in freed.pop().inputs:
            base = given.base
            if base.call is None or base.call in seen:
                continue
            if base.status is not RECOMPUTE:
                if _goes_before(base, storage):
                    return True
            elif not base.refs:
                seen.add(base.call)
                freed.append(base.call)
                if len(seen) > MOST_FREED:
                    return True
        if walks is not None:
            walks.calls += 1
    return False


def read_by_missing(storage: Storage, other: Call) -> bool:
    """True if a dropped tensor that has handles would be computed from ``storage`` by a call other than ``other``.
    Of long chains of freed calls between the two, MOST_FREED calls are looked at."""
    return _needed_below(storage, {other}, most=MOST_FREED, follows=lambda call: call.region is not None)


class Walks:
    """The prices of a runtime, with a count of the calls that they have looked at, which tells their work (``calls``).
    Prices without regions are as published: exact, and slower. Beyond MOST_WALKED calls the regions give the price."""

    def __init__(self) -> None:
        self.calls = 0

    def exact(self, storage: Storage) -> float | None:
        """Seconds of a storage's own call, of the dropped calls that it needs, and of the dropped calls that read it.
        None if its lineage is broken. With more than MOST_WALKED calls of either kind, the price by regions."""
        calls = self._above(storage)
        if calls is None:
            return None
        below = calls
        if len(calls) <= MOST_WALKED:
            below = _missing_below(storage)
            self.calls += len(below)
        if len(below) > MOST_WALKED:
            return _with_regions(storage, calls[-1])
        return sum(map(_seconds, calls)) + sum(map(_seconds, below))

    def ancestors(self, storage: Storage) -> float | None:
        """Seconds of its own call and of dropped calls it needs (too many: by regions); None if its lineage is broken.
        """
        calls = self._above(storage)
        if calls is not None and len(calls) > MOST_WALKED:
            return _with_regions(storage, calls[-1])
        return None if calls is None else sum(map(_seconds, calls))

    def own(self, storage: Storage) -> float | None:
        """Seconds of a storage's own call; None if its lineage is broken."""
        call = storage.call
        return None if call is None or self._above(storage) is None else _seconds(call)

    def prices(self) -> dict[Price, Callable[[Storage], float | None]]:
        """The function for each kind of price: a storage -> seconds, or None if it must not be dropped."""
        return {Price.REGIONS: partial(price, walks=self), Price.NEIGHBOURHOOD: self.exact,
                Price.ANCESTORS: self.ancestors, Price.OWN: self.own}

    def _above(self, storage: Storage) -> list[Call] | None:
        calls = missing_calls(storage, MOST_WALKED)
        self.calls += len(calls or ())
        return calls


def _missing_below(storage: Storage) -> list[Call]:
    """The dropped calls that need a storage, each once. The search stops after MOST_WALKED of them."""
    found: dict[Call, None] = {}
    wanted = [storage]
    while wanted and len(found) <= MOST_WALKED:
        readers = wanted.pop().missing_readers or ()
        for call in (each() for each in readers):
            if call is not None and call.region is not None and call not in found:
                found[call] = None
                wanted += [made for each in call.outputs if (made := each()) is not None]
    return list(found)


def _seconds(call: Call) -> float:
    return call.signature.algorithms[0].seconds


def _regions_below(storage: Storage) -> list[Region]:
    """The regions of the dropped calls that read a storage."""
    if not storage.missing_readers:
        return []
    return [call.region for reader in storage.missing_readers
            if (call := reader()) is not None and call.region is not None]
