"""The state that the actors of one runtime's memory share: the bytes, and the sets that say what may be done with them.

An actor is an object with one task (evicting, making room, replaying, ...). Its constructor takes this state and the
actors that it needs; ``manager`` puts them together. The sets hold weak references, because storages may die at any
time.
"""

import weakref
from collections import deque
from functools import partial
from threading import get_ident

from minidl.device import Device
from minidl.device.spill import Spill
from minidl.memory.allocator import Allocator
from minidl.memory.bytes.host_pool import HostPool
from minidl.memory.hooks import Attached
from minidl.memory.neighbourhood import Walks, price
from minidl.memory.on_host import OnHost
from minidl.memory.stalest import list_for
from minidl.memory.storage import OUT, RECOMPUTE, Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.placements.placement import Placement
from minidl.plan.policy import Policy, Price


class Busy:
    """A flag that is ``on`` during every change of the arena; used as ``with state.arena_busy:``.

    Python's cycle collector may free tensors at any allocation, in any thread, so also during a change of the arena.
    While the flag is on, a freed tensor is only queued (``MemoryState.orphans``)."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exc: object) -> None:
        self.on = False


class MemoryState(Attached):
    """The bytes of one device under one policy.

    live_refs    references to all storages that have bytes, on the device or on the host
    access_list  the tensors on the device in the order in which the policy evicts them, the next victim at the front
    walks        the count of calls that prices have looked at
    price        the seconds to replay a storage, by the policy's kind of price; None if it must not be dropped
    dropped      storages that were dropped and that the program may still need
    kept         tensors that replays have computed, oldest first, each with its access count at that time. Such a
                 tensor stays on the device until its next access, or until memory is short (collective recomputation)
    shared       freed tensors that replays have computed and that dropped tensors would be computed from, each with one
                 more use. Without a plan they stay on the device until memory is short or the iteration ends
    protected    storages that a replay under way needs: they may be swapped, and dropped only as a last resort
    awaited      those of ``protected`` that must not be dropped even as a last resort: operands of calls under way,
                 targets of replays under way, and tensors recomputed for the write under way
    nested       how many calls replays within other replays have run in this iteration
    writing      the storages that the in-place call under way will write
    secured      True from when all tensors are there whose replay reads these storages, until the call has run
    writes       how many events may have ended lineages so far: begin and end of each in-place call, last-resort drops
    impure       True if in this iteration a storage was written in place after it had been read
    orphans      storages to be freed before the next call, since the arena was busy when they lost their last use;
                 each with True if its Storage object has ended too
    thread       the thread that calls now; a runtime may be made in one thread and used in another
    link_costs   seconds per byte and per copy, between the device and the host"""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None, spill: Spill | None = None) -> None:
        super().__init__()
        self.device = device
        self.policy = policy
        self.tracker = tracker
        self.switches = switches
        swaps = policy.regime.swaps
        self.allocator = Allocator(device, budget_bytes, host_bytes if swaps else 0, placement,
                                   spill if swaps else None)
        self.on_host = OnHost(self.allocator.host if swaps else HostPool(host_bytes))
        self.arena = self.allocator.arena
        self.link_costs = device.link_costs
        self.live_refs: dict[weakref.ref[Storage], None] = {}
        self.walks = Walks()
        self.price = self.walks.prices()[policy.regime.price]
        by_regions = partial(price, joins=False, walks=self.walks)  # for comparisons alone
        self.access_list = list_for(policy, tracker, self.live_refs,
                                    by_regions if policy.regime.price is Price.REGIONS else self.price)
        self.dropped: dict[weakref.ref[Storage], None] = {}
        self.kept: dict[weakref.ref[Storage], int] = {}
        self.shared: dict[weakref.ref[Storage], None] = {}
        self.protected: set[Storage] = set()
        self.awaited: set[Storage] = set()
        self.nested = 0
        self.writing: set[Storage] = set()
        self.secured = False
        self.writes = 0
        self.impure = False
        self.orphans: deque[tuple[Storage, bool]] = deque()
        self.arena_busy = Busy()
        self.thread = get_ident()

    def live(self) -> list[Storage]:
        """The storages that have bytes on the device or on the host."""
        return [s for ref in self.live_refs if (s := ref()) is not None]

    def missing(self) -> list[Storage]:
        """The dropped storages that the program may still need."""
        return [s for ref in self.dropped if (s := ref()) is not None]

    def check(self) -> None:
        """Raises AssertionError unless the arena's blocks, the host pool and the status of each storage agree."""
        self.allocator.check()
        live = self.live()
        owned = {block.owner for block in self.arena.blocks() if block.owner is not None}
        assert owned == {s.me for s in live if s.block is not None}, "blocks and storages disagree"
        for storage in live:
            assert (storage.block is not None) == (storage.status is not OUT), f"{storage} and its block disagree"
            assert storage.status is not OUT or storage.host is not None, f"{storage} has no bytes"
            assert storage.refs >= storage.saved >= 0, f"{storage} is saved more often than used"
            assert storage.status is not RECOMPUTE, f"{storage} is listed as resident"
        for gone in self.missing():
            assert gone.status is RECOMPUTE, f"{gone} is listed as dropped"
        copies = sum(s.nbytes for s in live if s.host is not None)
        kept = self.on_host.kept_bytes if self.on_host.pool is self.allocator.host else 0
        assert self.allocator.host.used_bytes == copies + kept, "host leak"
