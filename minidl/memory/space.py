"""Making room on the device: what may leave it, what the policy says should, and how free bytes become one piece.

Room is found in this order: a free block; what is being copied out anyway; what the policy ranks, until enough is free
in total; then one piece is made of it, by the cheaper of evicting an address-contiguous window and sliding blocks
together. Blocks in use may be moved, never evicted. Knows storages and times; no operation.
"""

from __future__ import annotations

import weakref
from collections import deque
from itertools import islice
from threading import get_ident

from minidl.device.device import Device
from minidl.errors import OutOfMemory
from minidl.memory import neighbourhood
from minidl.memory.arena import Block, between
from minidl.memory.copies import Allocator, storage_of
from minidl.memory.guide import Guide
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.meta import aligned
from minidl.op import Call
from minidl.placements.placement import Placement
from minidl.plan.plan import Action
from minidl.plan.policy import Policy, Pressure, Residency
from minidl.units import format_bytes

MOST_WEIGHED = 400  # tensors that are priced for one allocation, unless all must go
SMALL_SHIFT = 10  # tensors of less than a 2^10th of the bytes that are wanted are not weighed, unless all must go


class Space:
    """The bytes of one device under one policy, and the sets that say what may be done with them."""

    guide: Guide | None = None  # set where the policy plans

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None) -> None:
        self.device = device
        self.policy = policy
        self.switches = switches
        self.tracker = tracker
        self.allocator = Allocator(device, budget_bytes, host_bytes, placement)
        self.arena = self.allocator.arena
        self.residents: dict[weakref.ref[Storage], None] = {}  # every storage with bytes on the device or the host
        self.dropped: dict[weakref.ref[Storage], None] = {}  # RECOMPUTE, though someone may still ask for it
        # What replays have made, oldest first, with the access count it then had: until it is accessed it stays as long
        # as memory allows (collective recomputation).
        self.kept: dict[weakref.ref[Storage], int] = {}
        self.leaving: deque[weakref.ref[Storage]] = deque()  # being copied out, earliest first; their blocks are due
        self.protected: set[Storage] = set()  # may be swapped but not dropped: a replay under way needs them
        self.writing: set[Storage] = set()  # targets of the in-place call under way
        # The cycle collector may free tensors at any allocation of Python's, also in the middle of the arena's work,
        # and in any thread: then they only queue here, until the next call.
        self.orphans: deque[tuple[Storage, bool]] = deque()
        self.busy = False
        self.thread = get_ident()  # the one that calls now; a runtime may be made in one and used in another

    def _claim(self, storage: Storage, offset: int) -> Block | None:
        """The bytes that a plan has for a storage, unless something is there that does not leave."""
        block = self.arena.allocate_at(offset, storage.nbytes, storage.me)
        if block is None and self.leaving:
            end = offset + storage.nbytes
            # Each once: what was wanted again and evicted again is in the queue twice.
            for other in dict.fromkeys(s for s in (ref() for ref in self.leaving)
                                       if s is not None and s.status is SWAPPING_OUT):
                assert other.block is not None
                if other.block.offset < end and offset < other.block.offset + other.block.size:
                    self.allocator.finish_swap_out(other)
            block = self.arena.allocate_at(offset, storage.nbytes, storage.me)
        return block

    def _allocate(self, nbytes: int, owner: object, pinned: set[Storage], op_name: str, *, high: bool = False) -> Block:
        block = self.arena.allocate(nbytes, owner, high=high)
        if block is None:
            self._make_room(nbytes, pinned, op_name)
            block = self.arena.allocate(nbytes, owner, high=high)
            assert block is not None
        return block

    def _make_room(self, nbytes: int, pinned: set[Storage], op_name: str) -> None:
        need = aligned(nbytes)
        arena = self.arena
        if need + sum(aligned(s.nbytes) for s in pinned if s.block is not None) > arena.capacity:
            raise self._out_of_memory(need, pinned, op_name, alone=True)  # nothing is evicted in vain
        willing: dict[Storage, Action] = {}
        self._reclaim_bytes(need)
        if self.policy.moves_tensors and arena.free_bytes < need:
            for ref in self.residents:  # what the plan has brought in too early for this
                storage = ref()
                if storage is not None and storage.status is SWAPPING_IN:
                    self.allocator.finish_swap_in(storage)
        self._drop_kept(need, pinned)
        if self.policy.moves_tensors:
            evictable = self._worth_weighing(pinned, need) if self.policy.weighs_recomputation else \
                self._evictable(pinned)
            willing = self._willing(evictable, need)
            for storage, action in list(willing.items()):
                if arena.free_bytes >= need:
                    break
                if self.evict(storage, action):
                    del willing[storage]
        if arena.free_bytes < need:
            raise self._out_of_memory(need, pinned, op_name)
        if not arena.fits(need):
            self._make_one_piece(need, willing)
            if not arena.fits(need) and self.policy.moves_tensors:  # nothing may be slid: all that is in the way goes
                while self._reclaim_one():
                    pass
                self._make_one_piece(need, self._willing(self._evictable(pinned), need))
            if not arena.fits(need):
                raise self._out_of_memory(need, pinned, op_name)

    def _willing(self, evictable: dict[int, Storage], need: int) -> dict[Storage, Action]:
        """What of this the policy would give up, most expendable first, and how."""
        host = self.allocator.host
        pressure = Pressure(need, host.capacity, host.capacity - host.used_bytes, self.device.profile.link_costs)
        ranking = self.policy.victims([self._residency(storage) for storage in evictable.values()], pressure)
        return {evictable[tensor_id]: action for tensor_id, action in ranking if tensor_id in evictable}

    def _make_one_piece(self, need: int, willing: dict[Storage, Action]) -> None:
        """Enough is free, but not in one piece: evict a contiguous window or slide blocks together, the cheaper."""
        device = self.device
        # A plan counts on what is here, and may be about to evict what a replay would start from.
        planned = self.guide is not None and self.guide.active is not None

        def seconds_to_evict(block: Block) -> float | None:
            storage = storage_of(block)
            if storage not in willing:
                return None
            replayed = neighbourhood.price(storage) if not planned and willing[storage] is Action.DROP else None
            if replayed is not None:
                return replayed
            again = device.in_seconds(block.size)
            return again if storage.host is not None else again + device.out_seconds(block.size)

        slide = self._slide(need)
        window = self.arena.cheapest_window(need, seconds_to_evict) if willing else None
        if window is not None and (slide is None or window[0] < device.move_seconds(_owned_bytes(*slide))):
            storages = [storage_of(block) for block in window[1]]
            # Not every one may go (the host may be full); the slide remains.
            if all(storage is None or self.evict(storage, willing[storage]) for storage in storages):
                return
            slide = self._slide(need)
        if slide is not None:
            self.allocator.slide(*slide)

    def _slide(self, need: int) -> tuple[Block, Block] | None:
        """The cheapest range to slide; only if there is no other, one with blocks that are being copied. None only
        under a placement that does not compact: enough is free, and everything can be moved."""
        slide = self.arena.cheapest_slide(need, in_flight) or self.arena.cheapest_slide(need)
        assert slide is not None or not self.arena.compacts
        return slide

    def _slide_for(self, nbytes: int, gain_seconds: float) -> bool:
        """Slide blocks together for a workspace, if that takes less time than the workspace saves."""
        need = aligned(nbytes)
        if self.arena.free_bytes < need:
            return False
        slide = self.arena.cheapest_slide(need, in_flight)
        if slide is None or self.device.move_seconds(_owned_bytes(*slide)) >= gain_seconds:
            return False
        self.allocator.slide(*slide)
        return True

    def _gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """A block, without evicting anything: by sliding if enough is free in total, which costs little; otherwise by
        giving away what is being copied out, earliest first, whose next user then waits for the copy."""
        need = aligned(nbytes)
        self._reclaim_landed()
        block = self.arena.allocate(nbytes, owner, high=high)
        if block is not None:
            return block
        while True:
            if self.arena.free_bytes >= need:
                slide = self.arena.cheapest_slide(need, in_flight)
                if slide is not None:
                    self.allocator.slide(*slide)
            block = self.arena.allocate(nbytes, owner, high=high)
            if block is not None or not self._reclaim_one():
                return block

    def _reclaim_landed(self) -> None:
        """Give away the blocks whose copies computation would not have to wait for."""
        while self.leaving:
            storage = self.leaving[0]()
            if storage is not None and storage.status is SWAPPING_OUT:
                if not self.device.landed(storage.copied_out):
                    return
                self.allocator.finish_swap_out(storage)
            self.leaving.popleft()

    def _reclaim_bytes(self, need: int) -> None:
        while self.arena.free_bytes < need and self._reclaim_one():
            pass

    def _drop_kept(self, need: int, pinned: set[Storage]) -> None:
        """Give up what came by in replays: it costs no copy, and nobody counted on it."""
        for ref, count in list(self.kept.items()):
            if self.arena.free_bytes >= need:
                return
            storage = ref()
            if storage is None or storage.status is not IN or storage.access_count != count:
                del self.kept[ref]  # somebody else's by now
            elif storage not in pinned and self._lineage(storage) is not None:
                self._drop(storage)
                del self.kept[ref]

    def _reclaim_one(self) -> bool:
        while self.leaving:
            storage = self.leaving.popleft()()
            if storage is not None and storage.status is SWAPPING_OUT:
                self.allocator.finish_swap_out(storage)
                return True
        return False

    def _evictable(self, pinned: set[Storage], least: int = 0) -> dict[int, Storage]:
        """What may be evicted now, of at least so many bytes, by tensor id."""
        return {s.tensor_id: s for ref in self.residents
                if (s := ref()) is not None and s.nbytes >= least and s.status is IN and s not in pinned}

    def _worth_weighing(self, pinned: set[Storage], need: int) -> dict[int, Storage]:
        """Of what may be evicted the larger ones, and of very many every n-th; but all if these are not enough."""
        found = self._evictable(pinned, need >> SMALL_SHIFT)
        if len(found) > MOST_WEIGHED:
            step = -(-len(found) // MOST_WEIGHED)
            found = dict(islice(found.items(), self.tracker.sequence % step, None, step))
        enough = sum(s.nbytes for s in found.values()) + self.arena.free_bytes >= need
        return found if enough else self._evictable(pinned)

    def _residency(self, storage: Storage) -> Residency:
        block = storage.block
        assert block is not None
        seconds = None
        if self.policy.weighs_recomputation and storage not in self.protected:
            call = storage.call
            if not (self.writing and call is not None and reads([call], self.writing)):
                seconds = neighbourhood.price(storage)
        tracker = self.tracker
        seen = storage.last_access >= tracker.iteration_start
        idle = tracker.sequence - max(storage.last_access, storage.replayed_at)
        return Residency(storage.tensor_id, block.size, block.offset, storage.first_access if seen else None,
                         storage.last_access if seen else None, storage.persistent, storage.host is not None, seconds,
                         idle)

    def evict(self, storage: Storage, action: Action) -> bool:
        """Take a storage off the device; False if neither the host has room nor lineage can make it again."""
        if action is Action.DROP and self._lineage(storage) is not None:
            self._drop(storage)
        elif self._back_up(storage):
            self.allocator.leave_device(storage)
            storage.become(OUT)
        elif self._lineage(storage) is not None:  # the host is full: swapping degrades to recomputation
            self._drop(storage)
        elif self._discard(storage.nbytes) and self._back_up(storage):
            self.allocator.leave_device(storage)
            storage.become(OUT)
        else:
            return False
        return True

    def _discard(self, nbytes: int) -> bool:
        """Give up what is on the host alone and can be made again, cheapest for its bytes first, until so many bytes
        are free there; False if they cannot be."""
        host = self.allocator.host
        swapped = (s for ref in self.residents if (s := ref()) is not None and s.status is OUT and s.nbytes)
        prices = [(price / s.nbytes, s.tensor_id, s) for s in swapped if (price := neighbourhood.price(s)) is not None]
        for _, _, storage in sorted(prices, key=lambda entry: entry[:2]):
            if host.capacity - host.used_bytes >= nbytes:
                break
            if self._lineage(storage) is not None:
                self._forget(storage)
        return host.capacity - host.used_bytes >= nbytes

    def _lineage(self, storage: Storage) -> list[Call] | None:
        """The calls that would make a storage again if it were dropped now; None if it must not be."""
        if storage in self.protected:
            return None
        calls = missing_calls(storage)
        return None if calls is None or reads(calls, self.writing) else calls

    def _drop(self, storage: Storage) -> None:
        self.allocator.leave_device(storage)
        self._forget(storage)

    def _forget(self, storage: Storage) -> None:
        """It has no bytes any more, though someone may still ask for them."""
        self.allocator.forget_host_copy(storage)
        storage.become(RECOMPUTE)
        self.residents.pop(storage.me, None)
        self.dropped[storage.me] = None
        if self.policy.weighs_recomputation:
            neighbourhood.lost(storage)

    def _back_up(self, storage: Storage) -> bool:
        """Have a valid copy on the host, making room by forgetting copies of what is on the device anyway."""
        if storage.host is not None:
            return True
        host = self.allocator.host
        if host.capacity - host.used_bytes < storage.nbytes:
            for ref in self.residents:
                other = ref()
                if other is not None and other.status is IN and other.host is not None:
                    self.allocator.forget_host_copy(other)
                    if host.capacity - host.used_bytes >= storage.nbytes:
                        break
        return self.allocator.swap_out(storage)

    def _out_of_memory(self, need: int, pinned: set[Storage], op_name: str, *, alone: bool = False) -> OutOfMemory:
        arena, host = self.arena, self.allocator.host
        in_use = sum(aligned(s.nbytes) for s in pinned if s.block is not None)
        resident = len(self._evictable(pinned))  # asked to leave, in vain
        text = (f"{op_name}: need {format_bytes(need)} beside {format_bytes(in_use)} in use by it; "
                f"{format_bytes(arena.free_bytes)} of {format_bytes(arena.capacity)} free, "
                f"{resident} tensors resident")
        wasted = sum(s.block.size - aligned(s.nbytes) for s in pinned if s.block is not None)
        if not arena.compacts and not alone and arena.free_bytes + wasted >= need:
            text += (f"; fragmentation: the largest free block has {format_bytes(arena.largest_free)}, what is in use "
                     f"takes {format_bytes(wasted)} more than it asked for, and nothing may be moved")
        elif not self.policy.moves_tensors:
            text += f"; policy {self.policy.name!r} evicts nothing"
        elif (resident and not alone) or host.used_bytes + need > host.capacity:
            text += f"; host memory is full ({format_bytes(host.used_bytes)} of {format_bytes(host.capacity)})"
        return OutOfMemory(text, op=op_name, need_bytes=need + in_use, budget_bytes=arena.capacity)


def in_flight(block: Block) -> bool:
    """Whether a block's bytes are being copied: moving it would have to wait."""
    storage = storage_of(block)
    return storage is not None and storage.status is not IN


def _owned_bytes(first: Block, last: Block) -> int:
    return sum(block.size for block in between(first, last) if block.owner is not None)
