"""Room on the device: a free block, or one that evictions make.

    1. a free block that fits
    2. a block that is being copied out already: its next user waits for the copy
    3. values that replays left behind, then the tensors that the policy ranks, until enough bytes are free in total
    4. one piece of these bytes: an address-contiguous window is evicted, or blocks slide, whichever takes less time

Blocks in use by the call under way may be slid, never evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidl.memory import neighbourhood
from minidl.memory.allocator import storage_of
from minidl.memory.bytes.block import Block, between
from minidl.memory.evicting import Evicting
from minidl.memory.shortage import out_of_memory
from minidl.memory.state import State
from minidl.memory.storage import IN, Storage
from minidl.plan.plan import Action

NEAR = 128  # blocks on either side of the largest free one, among which one piece is made first


class Room:
    """Finds blocks in the arena, and makes room where there is none."""

    def __init__(self, state: State, evicting: Evicting) -> None:
        self.state = state
        self.evicting = evicting

    def allocate(self, nbytes: int, owner: object, pinned: set[Storage], op_name: str, *, high: bool = False) -> Block:
        """A block of ``nbytes``, with as many evictions as it takes. Raises OutOfMemory.

        pinned: operands of the call under way, which stay; high: at the end for persistent tensors.
        """
        arena = self.state.arena
        block = arena.allocate(nbytes, owner, high=high)
        if block is None:
            self.make(nbytes, pinned, op_name)
            block = arena.allocate(nbytes, owner, high=high)
            assert block is not None
        return block

    def make(self, nbytes: int, pinned: set[Storage], op_name: str) -> None:
        """The loop of on-demand memory: ask the policy, evict, and ask again, until ``nbytes`` are free in one piece.

        Raises OutOfMemory.
        """
        state, arena, evicting = self.state, self.state.arena, self.evicting
        need = arena.rounded(nbytes)
        if need + self._in_use(pinned) > arena.capacity:
            return self._refuse(nbytes, pinned, op_name, alone=True)  # before anything is evicted in vain
        state.hooks.reclaim(need)
        evicting.drop_kept(need, pinned)
        willing: dict[Storage, Action] = {}  # asked about, and still here
        stuck: list[tuple[Storage, Action]] = []
        for batch in evicting.batches(need, pinned):
            willing = evicting.ask(batch, need)
            one_piece = self._one_window(need, willing)
            for storage, action in list(willing.items()):
                if arena.fits(need) if one_piece else arena.free_bytes >= need:
                    break
                if evicting.evict(storage, action):
                    del willing[storage]
                else:
                    stuck.append((storage, action))
            if arena.free_bytes >= need:
                break
        for storage, action in stuck:  # the host was full when their turn came
            if arena.free_bytes < need and evicting.evict(storage, action, at_any_price=True):
                willing.pop(storage, None)
        if arena.free_bytes < need:
            return self._refuse(nbytes, pinned, op_name)
        if not arena.fits(need):
            self._unite(need, pinned, willing)
        if not arena.fits(need):
            self._refuse(nbytes, pinned, op_name)

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

    def _in_use(self, pinned: set[Storage]) -> int:
        """Bytes of the arena that the operands of the call under way have asked for."""
        rounded = self.state.arena.rounded
        return sum(rounded(storage.nbytes) for storage in pinned if storage.block is not None)

    def _refuse(self, nbytes: int, pinned: set[Storage], op_name: str, *, alone: bool = False) -> None:
        """Try once more without decisions made ahead of time, if there are any. Raises OutOfMemory otherwise."""
        if self.state.hooks.relent():
            return self.make(nbytes, pinned, op_name)
        raise out_of_memory(self.state, self.state.arena.rounded(nbytes), op_name, in_use=self._in_use(pinned),
                            pinned=pinned, evictable=self.evicting.evictable(pinned), alone=alone)

    # One piece -----------------------------------------------------------------------------------------------
    def _one_window(self, need: int, willing: dict[Storage, Action]) -> bool:
        """Whether the policy wants its victims to be neighbours, and there are neighbours that leave room enough. Where
        tensors that stay split all that may leave, no number of victims makes one piece: then blocks are slid."""
        state = self.state
        return state.policy.regime.one_piece and state.arena.cheapest_window(
            need, lambda block: 0.0 if storage_of(block) in willing else None) is not None

    def _unite(self, need: int, pinned: set[Storage], willing: dict[Storage, Action]) -> None:
        """Enough bytes are free, but not in one piece: make one, if anything may be moved or evicted for it."""
        state, evicting = self.state, self.evicting
        if evicting.looks_nearby:
            self._unite_nearby(need, pinned)
        else:
            self._unite_among(need, willing, self._slide(need))
        if not state.arena.fits(need) and state.policy.moves_tensors:  # nothing may be slid: all in the way leaves
            state.hooks.reclaim(need, everything=True)
            self._unite_among(need, evicting.ask(evicting.evictable(pinned), need), self._slide(need))

    def _unite_nearby(self, need: int, pinned: set[Storage]) -> None:
        """As ``_unite_among``, for a policy that judges each tensor by itself: only the blocks around the largest free
        one are looked at, and more of them only where that finds nothing. So an allocation costs no more in a large
        program than in a small one. The policy is not asked if sliding takes less time than any copy."""
        state, evicting = self.state, self.evicting
        count = NEAR
        while True:
            nearby = state.arena.around(count)
            slide = state.arena.cheapest_slide(need, in_flight, nearby)
            if slide is not None and state.device.move_seconds(_owned_bytes(*slide)) <= state.device.in_seconds(0):
                state.allocator.slide(*slide)
                return
            owners = [s for s in map(storage_of, nearby) if s is not None and s.status is IN and s not in pinned]
            if self._unite_among(need, evicting.ask(owners, need), slide, nearby):
                return
            if nearby[0].previous is None and nearby[-1].next is None:
                break
            count *= 4
        slide = self._slide(need)
        if slide is not None:
            state.allocator.slide(*slide)

    def _unite_among(self, need: int, willing: dict[Storage, Action], slide: tuple[Block, Block] | None,
                     blocks: Sequence[Block] | None = None) -> bool:
        """Evict a contiguous window or slide blocks together, whichever is cheaper; False if neither can be done.

        willing: the tensors that may leave, and how; slide: the blocks that would be slid; blocks: where to look for a
        window, if not everywhere.
        """
        state, device = self.state, self.state.device
        acts = state.hooks.acts  # then a replay may start from a tensor that is about to be evicted

        def seconds_to_evict(block: Block) -> float | None:
            storage = storage_of(block)
            if storage is None or storage not in willing:
                return None
            replayed = neighbourhood.price(storage) if not acts and willing[storage] is Action.DROP else None
            if replayed is not None:
                return replayed
            again = device.in_seconds(block.size)
            return again if storage.host is not None else again + device.out_seconds(block.size)

        window = state.arena.cheapest_window(need, seconds_to_evict, blocks) if willing else None
        if window is not None and (slide is None or window[0] < device.move_seconds(_owned_bytes(*slide))):
            storages = [storage_of(block) for block in window[1]]
            # Some may not leave (the host may be full); the slide remains.
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


def in_flight(block: Block) -> bool:
    """Whether a block's bytes are being copied: moving it would have to wait."""
    storage = storage_of(block)
    return storage is not None and storage.status is not IN


def _owned_bytes(first: Block, last: Block) -> int:
    return sum(block.size for block in between(first, last) if block.owner is not None)
