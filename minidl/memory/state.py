"""The state that the actors of one runtime's memory share: the bytes, and the sets that say what may be done with them.

An actor is an object with one task (evicting, making room, replaying, ...). Its constructor takes this state and the
actors that it needs; ``manager`` puts them together. The sets hold weak references to storages that may die meanwhile.
"""

from __future__ import annotations

import weakref
from collections import deque
from threading import get_ident

from minidl.device import Device
from minidl.device.spill import Spill
from minidl.memory.allocator import Allocator
from minidl.memory.hooks import Attached
from minidl.memory.neighbourhood import GLANCES
from minidl.memory.stalest import list_for
from minidl.memory.storage import OUT, RECOMPUTE, Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.placements.placement import Placement
from minidl.plan.policy import Policy


class Busy:
    """``with state.arena_busy:`` around every change of the arena.

    Python's cycle collector may free tensors at any allocation, in any thread, so also during a change of the arena.
    While ``on``, a freed tensor is only queued (``MemoryState.orphans``).
    """

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exc: object) -> None:
        self.on = False


class MemoryState(Attached):
    """The bytes of one device under one policy.

    residents    all storages with bytes on the device or on the host
    access_list  the residents in the order in which they leave, for a policy that reads it from its front
    dropped      storages that are RECOMPUTE although a program may still need them
    kept         values that replays have computed, oldest first, each with its access count then. Until its next access
                 such a value stays as long as memory allows (collective recomputation)
    protected    storages that may be swapped but not dropped, since a replay under way needs them
    awaited      those of them that may not be dropped even as a last resort: operands of the calls under way, the
                 targets of replays under way, and what was recomputed for the write under way
    nested       calls that replays within other replays have run in this iteration
    writing      the targets of the in-place call under way
    writes       the number of events that end lineages: begin and end of each in-place call
    impure       in this iteration a storage was written in place after it had been read
    orphans      storages freed while the arena was busy, each with whether its record is gone; freed before the next
                 call
    thread       the thread that calls now; a runtime may be made in one thread and used in another
    link_costs   the costs of copies on this device
    """

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None, spill: Spill | None = None) -> None:
        super().__init__()
        self.device = device
        self.policy = policy
        self.tracker = tracker
        self.switches = switches
        host_bytes = host_bytes if policy.regime.swaps else 0
        self.allocator = Allocator(device, budget_bytes, host_bytes, placement, spill if policy.regime.swaps else None)
        self.arena = self.allocator.arena
        self.link_costs = device.link_costs
        self.residents: dict[weakref.ref[Storage], None] = {}
        self.access_list = list_for(policy, tracker, self.residents, GLANCES[policy.regime.price])
        self.dropped: dict[weakref.ref[Storage], None] = {}
        self.kept: dict[weakref.ref[Storage], int] = {}
        self.protected: set[Storage] = set()
        self.awaited: set[Storage] = set()
        self.nested = 0
        self.writing: set[Storage] = set()
        self.writes = 0
        self.impure = False
        self.orphans: deque[tuple[Storage, bool]] = deque()
        self.arena_busy = Busy()
        self.thread = get_ident()

    def live(self) -> list[Storage]:
        """The storages that have bytes on the device or on the host."""
        return [s for ref in self.residents if (s := ref()) is not None]

    def missing(self) -> list[Storage]:
        """The dropped storages whose records are still there."""
        return [s for ref in self.dropped if (s := ref()) is not None]

    def check(self) -> None:
        """Raises AssertionError unless blocks, host extents and statuses agree."""
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
        assert self.allocator.host.used_bytes == sum(s.nbytes for s in live if s.host is not None), "host leak"
