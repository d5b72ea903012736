"""What the actors of one runtime's memory share: its bytes, and the sets that say what may be done with whose.

An actor is an object with one task (making room, bringing tensors back, replaying, ...). It takes this state and the
actors that it needs in its constructor; ``manager.py`` puts them together. The sets hold weak references where a
storage may die while it is listed.
"""

from __future__ import annotations

import weakref
from collections import deque
from threading import get_ident

from minidl.device import Device
from minidl.device.spill import Spill
from minidl.memory.access_list import AccessList
from minidl.memory.copies import Allocator
from minidl.memory.guide import Guide
from minidl.memory.storage import IN, OUT, RECOMPUTE, Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.placements.placement import Placement
from minidl.plan.costs import Limits
from minidl.plan.policy import Policy
from minidl.planning.allowance import Allowance


class AtWork:
    """``with state.at_work:`` around whatever changes the arena.

    Python's cycle collector may free tensors at any allocation of Python's, also in the middle of the arena's work, and
    in any thread. While ``on``, what is freed only queues (``State.orphans``).
    """

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *exc: object) -> None:
        self.on = False


class State:
    """The bytes of one device under one policy.

    residents   every storage with bytes on the device or on the host
    dropped     those that are RECOMPUTE though someone may still ask for them
    kept        what replays have made, oldest first, with the access count it then had: until it is accessed it stays
                as long as memory allows (collective recomputation)
    leaving     those being copied out as planned, earliest first; their blocks are due when memory is wanted
    protected   may be swapped but not dropped: a replay under way needs them
    writing     the targets of the in-place call under way
    writes      counts what ends lineages: the begin and the end of each call in place, and failures
    impure      in this iteration something was written in place after it had been read
    orphans     freed while the arena was at work, with whether the record is gone; buried before the next call
    thread      the thread that calls now; a runtime may be made in one and used in another
    guide       follows the plan, where the policy plans
    access_list who leaves first, for a policy that reads it from its front
    link_costs  what copies cost on the device
    """

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None, spill: Spill | None = None) -> None:
        self.device = device
        self.policy = policy
        self.tracker = tracker
        self.switches = switches
        host_bytes = host_bytes if policy.regime.swaps else 0
        self.allocator = Allocator(device, budget_bytes, host_bytes, placement, spill if policy.regime.swaps else None)
        self.arena = self.allocator.arena
        self.link_costs = device.link_costs
        self.guide: Guide | None = None
        if policy.plans:
            limits = Limits(self.arena.capacity, self.allocator.host.capacity)
            self.guide = Guide(policy, self.link_costs, limits, switches, peak_flops=device.profile.peak_flops,
                               measured_iterations=device.measured_iterations,
                               allowance=Allowance(device.host_now, limited=device.wall_clock))
        self.residents: dict[weakref.ref[Storage], None] = {}
        self.access_list = AccessList(tracker, self.residents) if policy.reads_from_front else None
        self.dropped: dict[weakref.ref[Storage], None] = {}
        self.kept: dict[weakref.ref[Storage], int] = {}
        self.leaving: deque[weakref.ref[Storage]] = deque()
        self.protected: set[Storage] = set()
        self.writing: set[Storage] = set()
        self.writes = 0
        self.impure = False
        self.orphans: deque[tuple[Storage, bool]] = deque()
        self.at_work = AtWork()
        self.thread = get_ident()

    def live(self) -> list[Storage]:
        """The storages that have bytes somewhere."""
        return [s for ref in self.residents if (s := ref()) is not None]

    def missing(self) -> list[Storage]:
        """The dropped storages whose records are still there."""
        return [s for ref in self.dropped if (s := ref()) is not None]

    def bytes_in_use(self, pinned: set[Storage]) -> int:
        """Bytes of the arena that the operands of the call under way have asked for."""
        return sum(self.arena.rounded(s.nbytes) for s in pinned if s.block is not None)

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


def with_bytes(*storages: Storage) -> set[Storage]:
    """The bases among these that have bytes of their own: an input that is being written over still names its block,
    which counts as the output's."""
    return {storage.base for storage in storages if storage.base.status is IN}
