"""Room on the device: a free block, or what can be made free and one piece.

    1. a free block that fits
    2. what is being copied out anyway: whoever takes its block waits for the copy
    3. what replays left behind, and what the policy ranks, until enough is free in total
    4. one piece is made of it, by the cheaper of evicting an address-contiguous window and sliding blocks together

Blocks in use may be slid, never evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minidl.errors import OutOfMemory
from minidl.memory import neighbourhood
from minidl.memory.allocator import storage_of
from minidl.memory.bytes.block import Block, between
from minidl.memory.evicting import Evicting
from minidl.memory.state import State
from minidl.memory.storage import IN, SWAPPING_IN, SWAPPING_OUT, Storage
from minidl.outside.units import format_bytes
from minidl.plan.plan import Action

NEAR = 128  # blocks on either side of the largest free one, among which one piece is made first


class Room:
    """Finds blocks in the arena, and makes room where there is none."""

    def __init__(self, state: State, evicting: Evicting) -> None:
        self.state = state
        self.evicting = evicting

    def allocate(self, nbytes: int, owner: object, pinned: set[Storage], op_name: str, *, high: bool = False) -> Block:
        """A block of so many bytes, whatever has to leave for it. Raises OutOfMemory.

        pinned: operands of the call under way, which stay; high: at the persistent end.
        """
        arena = self.state.arena
        block = arena.allocate(nbytes, owner, high=high)
        if block is None:
            self.make(nbytes, pinned, op_name)
            block = arena.allocate(nbytes, owner, high=high)
            assert block is not None
        return block

    def claim(self, storage: Storage, offset: int) -> Block | None:
        """The bytes that a plan has for a storage, unless something is there that does not leave."""
        state = self.state
        block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
        if block is None and state.leaving:
            end = offset + storage.nbytes
            # Each once: what was wanted again and evicted again is in the queue twice.
            for other in dict.fromkeys(s for s in (ref() for ref in state.leaving)
                                       if s is not None and s.status is SWAPPING_OUT):
                assert other.block is not None
                if other.block.offset < end and offset < other.block.offset + other.block.size:
                    state.allocator.finish_swap_out(other)
            block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
        return block

    def gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """A block, without evicting anything: by sliding if enough is free in total, which costs little; otherwise by
        giving away what is being copied out, earliest first, whose next user then waits for the copy."""
        state, need = self.state, self.state.arena.rounded(nbytes)
        arena = state.arena
        self.reclaim_landed()
        block = arena.allocate(nbytes, owner, high=high)
        if block is not None:
            return block
        while True:
            if arena.free_bytes >= need:
                slide = arena.cheapest_slide(need, in_flight)
                if slide is not None:
                    state.allocator.slide(*slide)
            block = arena.allocate(nbytes, owner, high=high)
            if block is not None or not self._reclaim_one():
                return block

    def make(self, nbytes: int, pinned: set[Storage], op_name: str) -> None:
        """Have so many bytes free in one piece; a plan under which they cannot be had ends. Raises OutOfMemory."""
        try:
            self._make(nbytes, pinned, op_name)
        except OutOfMemory:
            guide = self.state.guide
            if guide is None or not guide.strike():
                raise
            self._make(nbytes, pinned, op_name)

    def _make(self, nbytes: int, pinned: set[Storage], op_name: str) -> None:
        state, need = self.state, self.state.arena.rounded(nbytes)
        arena = state.arena
        if need + state.bytes_in_use(pinned) > arena.capacity:
            raise self._out_of_memory(need, pinned, op_name, alone=True)  # nothing is evicted in vain
        while arena.free_bytes < need and self._reclaim_one():
            pass
        if state.guide is not None and arena.free_bytes < need:
            for storage in state.live():  # what the plan has brought in too early for this
                if storage.status is SWAPPING_IN:
                    state.allocator.finish_swap_in(storage)
                    if state.access_list is not None:
                        state.access_list.touch((storage,))
        self.evicting.drop_kept(need, pinned)
        willing: dict[Storage, Action] = {}
        offered: Iterable[tuple[Storage, Action]] = ()
        if state.access_list is not None:
            offered = self.evicting.in_order(need, pinned)
        elif state.policy.moves_tensors:
            willing = self.evicting.victims(need, pinned)
            offered = list(willing.items())
        # Where what stays splits all that may leave, no number of victims makes one piece: then blocks are slid.
        one_piece = state.policy.regime.one_piece and arena.cheapest_window(
            need, lambda block: 0.0 if storage_of(block) in willing else None) is not None
        stuck: list[tuple[Storage, Action]] = []
        for storage, action in offered:
            if arena.fits(need) if one_piece else arena.free_bytes >= need:
                break
            if self.evicting.evict(storage, action):
                willing.pop(storage, None)
            else:
                stuck.append((storage, action))
        for storage, action in stuck:  # the host is full
            if arena.free_bytes < need and self.evicting.evict(storage, action, at_any_price=True):
                willing.pop(storage, None)
        if arena.free_bytes < need:
            raise self._out_of_memory(need, pinned, op_name)
        if not arena.fits(need) and state.access_list is not None:
            self._make_one_piece_nearby(need, pinned)
        elif not arena.fits(need):
            self._make_one_piece(need, willing, self._slide(need))
        if not arena.fits(need) and state.policy.moves_tensors:  # nothing may be slid: all that is in the way goes
            self.reclaim_all()
            self._make_one_piece(need, self.evicting.victims(need, pinned, every=True), self._slide(need))
        if not arena.fits(need):
            raise self._out_of_memory(need, pinned, op_name)

    def slide_for(self, nbytes: int, gain_seconds: float) -> bool:
        """Slide blocks together for a workspace, if that takes less time than the workspace saves."""
        state, need = self.state, self.state.arena.rounded(nbytes)
        if state.arena.free_bytes < need:
            return False
        slide = state.arena.cheapest_slide(need, in_flight)
        if slide is None or state.device.move_seconds(_owned_bytes(*slide)) >= gain_seconds:
            return False
        state.allocator.slide(*slide)
        return True

    def reclaim_landed(self) -> None:
        """Give away the blocks whose copies computation would not have to wait for."""
        state, leaving = self.state, self.state.leaving
        while leaving:
            storage = leaving[0]()
            if storage is not None and storage.status is SWAPPING_OUT:
                if not state.device.landed(storage.copied_out):
                    return
                state.allocator.finish_swap_out(storage)
            leaving.popleft()

    def reclaim_all(self) -> None:
        """Give away all blocks that are being copied out: computation has waited for these copies."""
        while self._reclaim_one():
            pass

    def _reclaim_one(self) -> bool:
        """Give away the block whose copy out began first, though it may not have landed (Capuchin, section 5.3)."""
        leaving = self.state.leaving
        while leaving:
            storage = leaving.popleft()()
            if storage is not None and storage.status is SWAPPING_OUT:
                self.state.allocator.finish_swap_out(storage)
                return True
        return False

    def _make_one_piece_nearby(self, need: int, pinned: set[Storage]) -> None:
        """As ``_make_one_piece``, for a policy that says of each tensor by itself how it leaves: only what lies around
        the largest free block is looked at, and more of it only where nothing is found, so that an allocation costs no
        more in a large program than in a small one. Nobody is asked if sliding takes less time than any copy."""
        state, count = self.state, NEAR
        while True:
            nearby = state.arena.around(count)
            slide = state.arena.cheapest_slide(need, in_flight, nearby)
            if slide is not None and state.device.move_seconds(_owned_bytes(*slide)) <= state.device.in_seconds(0):
                state.allocator.slide(*slide)
                return
            if self._make_one_piece(need, self.evicting.willing(nearby, pinned, need), slide, nearby):
                return
            if nearby[0].previous is None and nearby[-1].next is None:
                break
            count *= 4
        slide = self._slide(need)
        if slide is not None:
            state.allocator.slide(*slide)

    def _make_one_piece(self, need: int, willing: dict[Storage, Action], slide: tuple[Block, Block] | None,
                        blocks: Sequence[Block] | None = None) -> bool:
        """Enough is free, but not in one piece: evict a contiguous window or slide blocks together, the cheaper. False
        if neither can be done.

        willing: who may leave, and how; slide: what would be slid; blocks: where a window is looked for, if not
        everywhere.
        """
        state = self.state
        device = state.device
        # A plan counts on what is here, and may be about to evict what a replay would start from.
        planned = state.guide is not None and state.guide.plans_ahead

        def seconds_to_evict(block: Block) -> float | None:
            storage = storage_of(block)
            if storage is None or storage not in willing:
                return None
            replayed = neighbourhood.price(storage) if not planned and willing[storage] is Action.DROP else None
            if replayed is not None:
                return replayed
            again = device.in_seconds(block.size)
            return again if storage.host is not None else again + device.out_seconds(block.size)

        window = state.arena.cheapest_window(need, seconds_to_evict, blocks) if willing else None
        if window is not None and (slide is None or window[0] < device.move_seconds(_owned_bytes(*slide))):
            storages = [storage_of(block) for block in window[1]]
            # Not every one may go (the host may be full); the slide remains.
            if all(storage is None or self.evicting.evict(storage, willing[storage]) for storage in storages):
                return True
            slide = self._slide(need)
        if slide is not None:
            state.allocator.slide(*slide)
        return slide is not None

    def _slide(self, need: int) -> tuple[Block, Block] | None:
        """The cheapest range to slide; only if there is no other, one with blocks that are being copied. None only
        under a placement that does not compact: enough is free, and everything can be moved."""
        arena = self.state.arena
        slide = arena.cheapest_slide(need, in_flight) or arena.cheapest_slide(need)
        assert slide is not None or not arena.compacts
        return slide

    def _out_of_memory(self, need: int, pinned: set[Storage], op_name: str, *, alone: bool = False) -> OutOfMemory:
        state = self.state
        arena, host = state.arena, state.allocator.host
        in_use = state.bytes_in_use(pinned)
        evictable = self.evicting.evictable(pinned)  # asked to leave, in vain
        resident = len(evictable)
        text = (f"{op_name}: need {format_bytes(need)} beside {format_bytes(in_use)} in use by it; "
                f"{format_bytes(arena.free_bytes)} of {format_bytes(arena.capacity)} free, "
                f"{resident} tensors resident")
        wasted = sum(s.block.size - arena.rounded(s.nbytes) for s in pinned if s.block is not None)
        scattered = not arena.compacts and not alone and arena.free_bytes + wasted >= need
        moves = state.policy.moves_tensors
        host_full = moves and state.policy.regime.swaps and not scattered and (
            not alone and any(s.host is None and host.used_bytes + s.nbytes > host.capacity
                              for s in evictable.values()) or host.used_bytes + need > host.capacity)
        if scattered:
            text += (f"; fragmentation: the largest free block has {format_bytes(arena.largest_free)}, what is in use "
                     f"takes {format_bytes(wasted)} more than it asked for, and nothing may be moved")
        elif not moves:
            text += f"; policy {state.policy.name!r} evicts nothing"
        elif resident and not alone and not host_full:
            text += f"; policy {state.policy.name!r} let none of them go"
        error = OutOfMemory(text, op=op_name, need_bytes=need + in_use, budget_bytes=arena.capacity)
        return self.with_full_host(error) if host_full else error

    def with_full_host(self, error: OutOfMemory) -> OutOfMemory:
        """The same refusal, where more host memory might have helped."""
        if error.host_full or not self.state.policy.regime.swaps:
            return error
        host = self.state.allocator.host
        text = (f"{error}; host memory is full ({format_bytes(host.used_bytes)} of {format_bytes(host.capacity)} in "
                "use, and the rest is too small)")
        return OutOfMemory(text, op=error.op, need_bytes=error.need_bytes, budget_bytes=error.budget_bytes,
                            host_full=True)


def in_flight(block: Block) -> bool:
    """Whether a block's bytes are being copied: moving it would have to wait."""
    storage = storage_of(block)
    return storage is not None and storage.status is not IN


def _owned_bytes(first: Block, last: Block) -> int:
    return sum(block.size for block in between(first, last) if block.owner is not None)
