"""The memory manager: makes inputs resident, keeps lineage honest around in-place calls, follows the plan. It is what
the executor talks to; placing outputs and making room are its bases (``placing``, ``space``).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident

from minidl.device.clock import COMPUTE
from minidl.device.device import Device
from minidl.errors import Unrecoverable
from minidl.memory import neighbourhood
from minidl.memory.arena import Block
from minidl.memory.boundary import pack_survivors
from minidl.memory.guide import Actions, Returns
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.placing import Placer
from minidl.memory.space import in_flight
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.memory.switches import Switches
from minidl.memory.tracker import GRADIENT_ID, SURVIVOR_STEP, Tracker
from minidl.placements.placement import Placement
from minidl.plan.plan import AccessKey, Action
from minidl.plan.policy import Policy


class Manager(Placer):
    """Memory of one device under one policy. ``replay`` is set by the executor: it makes a dropped storage again."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None) -> None:
        super().__init__(device, policy, tracker, budget_bytes, host_bytes, switches, placement)
        self.replay: Callable[[Storage], None]
        self.prefetches: deque[weakref.ref[Storage]] = deque()  # to be swapped in as soon as there is room
        self.evicted: dict[TensorId, weakref.ref[Storage]] = {}  # by the plan, in this iteration
        # How evicted tensors came back in this iteration, by the access after which they had left: positions on the
        # copy-in and the compute stream, when a prefetched one was wanted; seconds of copying, or of replaying.
        self.arrivals: list[tuple[AccessKey, int, int]] = []
        self.paged_in: dict[AccessKey, float] = {}
        self.recomputed: dict[AccessKey, Sequence[float]] = {}
        self.paged_in_bytes = 0
        self._impure = False  # in this iteration something was written in place after it had been read
        self._lineage_start = 0  # no lineage leads to calls before this one

    # Before a call -------------------------------------------------------------------------------------------
    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring every input's bytes to the device. Raises OutOfMemory, Unrecoverable."""
        bases = list(dict.fromkeys(storage.base for storage in inputs))
        added = [base for base in bases if base not in self.protected]
        self.protected.update(added)
        try:
            # Replays first, with nothing of this call pinned: they need the room, and may swap what was made before.
            for base in bases:
                if base.status is RECOMPUTE:
                    self.replay(base)
            pinned = set(bases)
            for base in bases:
                if base.status is SWAPPING_OUT:
                    base.become(IN)  # wanted again before its bytes were given away
                elif base.status is SWAPPING_IN:
                    self._arrive(base)
            for base in bases:
                if base.status is OUT:
                    self._swap_in(base, pinned, op_name)
        finally:
            self.protected.difference_update(added)

    def _swap_in(self, storage: Storage, pinned: set[Storage], op_name: str) -> None:
        self.busy = True
        try:
            block = self._planned(storage)
            if block is None:
                block = self._allocate(storage.nbytes, storage.me, pinned, op_name, high=storage.persistent)
            storage.residency += 1
            self.allocator.swap_in(storage, block)
        finally:
            self.busy = False
        self.paged_in_bytes += storage.nbytes
        if self.guide is not None:
            self.paged_in[storage.tensor_id, storage.access_count] = self.device.in_seconds(storage.nbytes)

    def _planned(self, storage: Storage) -> Block | None:
        """Where the plan wants a storage that comes back, if it says so and these bytes can be had."""
        address = self.guide.address(storage) if self.guide is not None else None
        return self._claim(storage, address) if address is not None else None

    def _arrive(self, storage: Storage) -> None:
        """A prefetched tensor is wanted now; how late it was is known when the iteration is over."""
        self.allocator.finish_swap_in(storage)
        key = storage.tensor_id, storage.access_count
        self.arrivals.append((key, storage.copied_in, self.device.positions[COMPUTE]))

    def before_write(self, targets: Iterable[Storage]) -> None:
        """Prepare for an in-place call: values that will be computed from the old bytes are computed now."""
        # From here until it is done nothing may be dropped that would have to read the old bytes.
        self.writing = {storage.base for storage in targets}
        latest = max([base.last_access for base in self.writing])
        if latest >= self.tracker.iteration_start:
            self._impure = True
        if latest < self._lineage_start:
            return  # running statistics, as a rule: nothing that may be replayed has read them
        for ref in list(self.dropped):
            other = ref()
            if other is not None and reads(missing_calls(other) or [], self.writing):
                self.replay(other)

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """Call ``number`` has changed the bytes: a host copy is stale, and lineage no longer leads to them."""
        self.busy = True
        for storage in targets:
            base = storage.base
            base.mutated_at = number
            base.call = None
            self.allocator.forget_host_copy(base)
        self.busy = False
        self.writing = set()

    # Guided execution ----------------------------------------------------------------------------------------

    def act(self, actions: Actions, operands: Iterable[Storage]) -> None:
        """Do what the plan says after a call: evictions of its operands, then swap-ins of what was evicted before."""
        evictions, prefetches = actions
        if evictions:
            self.busy = True
            try:
                for base in dict.fromkeys(storage.base for storage in operands):
                    action = evictions.get(base.tensor_id)
                    if action is not None and base.status is IN and base.refs:
                        self._evict_ahead(base, action)
            finally:
                self.busy = False
        for tensor_id in prefetches:
            ref = self.evicted.get(tensor_id)
            if ref is not None:
                self.prefetches.append(ref)

    def _evict_ahead(self, storage: Storage, action: Action) -> None:
        """Evict as planned: computation goes on, and the block is due when its memory is wanted."""
        self.evicted[storage.tensor_id] = storage.me
        if action is Action.DROP and self._lineage(storage) is not None:
            self._drop(storage)
        elif storage.host is not None:
            self.allocator.leave_device(storage)
            storage.become(OUT)
        elif self.allocator.start_swap_out(storage):
            self.leaving.append(storage.me)

    def prefetch(self) -> None:
        """Start the swap-ins that are due, in order, as far as there is room; the others are postponed."""
        queue = self.prefetches
        while queue:
            storage = queue[0]()
            if storage is None or storage.status is not OUT:
                if storage is not None and storage.status is SWAPPING_OUT:
                    storage.become(IN)
                queue.popleft()
                continue
            # At the persistent end: a block that is being filled cannot be moved, and would split the space.
            self.busy = True
            try:
                block = self._planned(storage)
                if block is None:
                    block = self.arena.allocate(storage.nbytes, storage.me, high=True)
                if block is None:
                    block = self._gather(storage.nbytes, storage.me, high=True)
                if block is not None:
                    storage.residency += 1
                    self.allocator.start_swap_in(storage, block)
            finally:
                self.busy = False
            if block is None:
                return
            queue.popleft()

    def returns(self) -> Returns:
        """How what had left the device in this iteration came back."""
        late = {key: self.device.lateness(copied, computed) for key, copied, computed in self.arrivals}
        recomputed = {key: sum(durations) for key, durations in self.recomputed.items()}
        return Returns(late, dict(self.paged_in), recomputed)

    def replayed(self, target: Storage, durations: Sequence[float]) -> None:
        """A dropped storage was wanted, and has been computed again.

        durations: of the calls of its replay (seconds); on a clock that is not modelled it fills as they finish.
        """
        if self.guide is not None:
            self.recomputed[target.tensor_id, target.access_count] = durations

    # Ends ----------------------------------------------------------------------------------------------------

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Nobody can ask for these bytes any more: free them on the device and on the host."""
        if self._impure and self.dropped and not record_gone and storage.call is not None:
            calls = missing_calls(storage)
            if calls is None or reads(calls, self.writing):
                self.tracker.freed(storage)  # as far as the program is concerned
                return  # something dropped may still have to start from it; it goes with its record
        if self.busy or get_ident() != self.thread:
            self.orphans.append((storage, record_gone))
            return
        self.busy = True
        if storage.block is not None:
            self.allocator.leave_device(storage)
        if storage.host is not None:
            self.allocator.forget_host_copy(storage)
        if storage.status is not RECOMPUTE:
            storage.become(RECOMPUTE)
            self.residents.pop(storage.me, None)
        elif self.dropped:
            self.dropped.pop(storage.me, None)
        self.tracker.freed(storage)
        self.busy = False

    def bury(self) -> None:
        """Free what was left while the arena was at work."""
        for _ in range(len(self.orphans)):
            storage, record_gone = self.orphans.popleft()
            if record_gone or not storage.refs:  # a replay may have come to need it again: it lets go of it later
                self.deallocate(storage, record_gone=record_gone)

    def regenerated(self, storage: Storage) -> None:
        """A dropped storage has its bytes again: a replay's target, or what came by on the way."""
        self.dropped.pop(storage.me, None)
        self.kept[storage.me] = storage.access_count
        neighbourhood.found(storage)
        storage.replayed_at = now = self.tracker.sequence
        for read in storage.inputs:
            read.base.replayed_at = now

    def drop_again(self, storages: Iterable[Storage]) -> None:
        """Without collective recomputation: what a replay made on its way goes, if it may."""
        self.busy = True
        for storage in storages:
            if storage.status is IN and storage.refs and self._lineage(storage) is not None:
                self._drop(storage)
        self.busy = False

    def end_iteration(self, *, failed: bool = False) -> None:
        """Make survivors real and cut their lineage, so that nothing pins what this iteration read.

        After a failure nothing is computed any more: what was dropped keeps its lineage until someone asks for it.
        """
        dropped = [s for s in (ref() for ref in self.dropped) if s is not None]
        # What has bytes becomes a leaf first: to make room for the others it may be swapped, but no longer dropped.
        for storage in self.live():
            _cut(storage)
        for storage in [] if failed else dropped:
            if storage.status is RECOMPUTE:
                if missing_calls(storage) is None:
                    raise Unrecoverable(f"tensor {storage.tensor_id} was dropped and cannot be computed again")
                self.replay(storage)
            _cut(storage)
        live = dict.fromkeys([*self.live(), *dropped])
        owners = {s.grad.storage.base: s for s in live if s.persistent and s.grad is not None}
        for storage in live:
            storage.access_count = 0
            storage.residency = 1
            if not failed:
                storage.missing_readers = None  # nothing is missing now
            if storage in owners:
                storage.tensor_id = GRADIENT_ID - owners[storage].tensor_id
            elif storage.tensor_id >= 0:
                storage.tensor_id += SURVIVOR_STEP
        self.bury()
        self._impure = False
        if not failed:
            self._lineage_start = self.tracker.sequence + 1
        if self.guide is not None and not failed:
            # Little is left now, and wherever it lies it would split the space that the plan counts on.
            self.busy = True
            if self.guide.offsets:
                pack_survivors(self.allocator, live)
            else:  # the persistent end will do
                slide = self.arena.cheapest_slide(self.arena.free_bytes, in_flight)
                if slide is not None:
                    self.allocator.slide(*slide)
            self.busy = False
        self.prefetches.clear()
        self.evicted.clear()
        self.kept.clear()
        self.arrivals.clear()
        self.paged_in.clear()
        self.recomputed.clear()
        self.paged_in_bytes = 0

    def live(self) -> list[Storage]:
        """The storages that have bytes somewhere."""
        return [s for s in (ref() for ref in self.residents) if s is not None]

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
        for ref in self.dropped:
            gone = ref()
            assert gone is None or gone.status is RECOMPUTE, f"{gone} is listed as dropped"
        assert self.allocator.host.used_bytes == sum(s.nbytes for s in live if s.host is not None), "host leak"


def _cut(storage: Storage) -> None:
    """Make a storage with bytes a leaf."""
    if storage.call is not None:
        storage.call = None
        storage.requires_grad = False  # its graph is gone: a later backward() must not end here in silence
