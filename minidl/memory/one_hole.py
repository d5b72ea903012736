"""Makes one hole when enough bytes are free, but in several holes.

There are two ways, and the faster one is taken: evict a window (tensors that lie side by side), or slide blocks
together. The operands of the current call may be moved, too, so enough bytes in total always suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidl.memory import neighbourhood
from minidl.memory.allocator import storage_of
from minidl.memory.bytes.block import Block, between
from minidl.memory.evicting import Evicting
from minidl.memory.moving import slide_blocks
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, Storage
from minidl.plan.plan import Action

NEAR = 128  # blocks on either side of the largest hole that are searched first

Slide = tuple[Block, Block]  # the first and the last block of a range that is slid together


class OneHole:
    """Makes one hole of several free blocks."""

    def __init__(self, state: MemoryState, evicting: Evicting) -> None:
        self.state = state
        self.evicting = evicting

    def has_window(self, need: int, willing: dict[Storage, Action]) -> bool:
        """True if tensors of ``willing`` that lie side by side would leave one hole of ``need`` bytes.
        willing: the tensors that may be evicted, each with a swap-out or a drop."""
        return self.state.arena.cheapest_window(
            need, lambda block: 0.0 if storage_of(block) in willing else None) is not None

    def slide_for(self, nbytes: int, gain_seconds: float) -> bool:
        """Slide blocks together for a workspace of ``nbytes``, if that takes less time than ``gain_seconds``.
        gain_seconds: what the algorithm with this workspace saves. False if nothing was slid."""
        state, need = self.state, self.state.arena.rounded(nbytes)
        if state.arena.free_bytes < need:
            return False
        slide = state.arena.cheapest_slide(need, in_flight)
        if slide is None or state.device.move_seconds(_owned_bytes(*slide)) >= gain_seconds:
            return False
        slide_blocks(state.allocator, *slide)
        return True

    def make(self, need: int, pinned: set[Storage], willing: dict[Storage, Action]) -> None:
        """Make a hole of ``need`` bytes, if tensors may be moved or evicted.
        pinned: operands of the call under way, which are not evicted. willing: the tensors that may be evicted, each
        with a swap-out or a drop."""
        state, evicting = self.state, self.evicting
        if evicting.looks_nearby:
            self._near_the_largest(need, pinned)
        else:
            self._among(need, willing, self._slide(need))
        if not state.arena.fits(need) and state.policy.moves_tensors:  # nothing may be slid: evict instead
            state.hooks.reclaim(need, everything=True)
            self._among(need, evicting.ask(evicting.evictable(pinned), need), self._slide(need))

    def _near_the_largest(self, need: int, pinned: set[Storage]) -> None:
        """Evict tensors side by side or slide blocks, whichever is faster, among the blocks around the largest hole.
        If that fails, more blocks are searched, up to all. So an allocation takes no longer in a large program than in
        a small one. The policy is not asked if a slide takes less time than any copy to the host."""
        state, evicting = self.state, self.evicting
        count = NEAR
        while True:
            nearby = state.arena.around(count)
            slide = state.arena.cheapest_slide(need, in_flight, nearby)
            if slide is not None and state.device.move_seconds(_owned_bytes(*slide)) <= state.device.in_seconds(0):
                slide_blocks(state.allocator, *slide)
                return
            owners = [s for s in map(storage_of, nearby) if s is not None and s.status is IN and s not in pinned]
            if self._among(need, evicting.ask(owners, need), slide, nearby):
                return
            if nearby[0].previous is None and nearby[-1].next is None:
                break
            count *= 4
        slide = self._slide(need)
        if slide is not None:
            slide_blocks(state.allocator, *slide)

    def _among(self, need: int, willing: dict[Storage, Action], slide: Slide | None,
               blocks: Sequence[Block] | None = None) -> bool:
        """Evict tensors side by side, or slide blocks together, whichever is faster; False if neither is possible.
        willing: the tensors that may be evicted, each with a swap-out or a drop. slide: the range of blocks that would
        be slid. blocks: the blocks among which tensors to evict are searched; all by default."""
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
            # Some may be unable to leave (the host may be full); then the slide remains.
            if all(storage is None or self.evicting.evict(storage, willing[storage]) for storage in storages):
                return True
            slide = self._slide(need)
        if slide is not None:
            slide_blocks(state.allocator, *slide)
        return slide is not None

    def _slide(self, need: int) -> Slide | None:
        """The range of blocks that leaves a hole of ``need`` bytes after the fewest moved bytes.
        A range without blocks that are being copied is preferred. None only if the placement forbids slides."""
        arena = self.state.arena
        slide = arena.cheapest_slide(need, in_flight) or arena.cheapest_slide(need)
        assert slide is not None or not arena.compacts
        return slide


def in_flight(block: Block) -> bool:
    """True if a block's bytes are being copied: moving the block would have to wait."""
    storage = storage_of(block)
    return storage is not None and storage.status is not IN


def _owned_bytes(first: Block, last: Block) -> int:
    return sum(block.size for block in between(first, last) if block.owner is not None)
