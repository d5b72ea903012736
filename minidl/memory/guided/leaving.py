"""The queue of planned swap-outs under way, whose blocks are freed when memory is needed (Capuchin, section 5.3).

A planned swap-out queues its copy and keeps its block, so computation goes on. When memory is needed, blocks are freed,
the earliest first. The next user of a block waits on its own stream for the copy, by the block's marks.
"""

import weakref
from collections import deque

from minidl.memory.bytes.block import Block
from minidl.memory.moving import slide_blocks
from minidl.memory.one_hole import in_flight
from minidl.memory.state import MemoryState
from minidl.memory.storage import SWAPPING_OUT, Storage


class Leaving:
    """The queue of storages whose planned swap-out is running, the earliest first. An empty queue is false."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self._queue: deque[weakref.ref[Storage]] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def start(self, storage: Storage) -> None:
        """Queue the swap-out of a storage; if the host has no room for it, the storage stays on the device."""
        if self.state.allocator.start_swap_out(storage):
            self._queue.append(storage.me)

    def claim(self, storage: Storage, offset: int) -> Block | None:
        """Allocate the block at an address, over bytes that are free or being copied out; None if others lie there."""
        state = self.state
        block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
        if block is None and self._queue:
            end = offset + storage.nbytes
            self._forget_landed()
            for ref in tuple(self._queue):
                other = ref()
                assert other is not None and other.block is not None
                if other.block.offset < end and offset < other.block.offset + other.block.size:
                    state.allocator.finish_swap_out(other)
                    self._queue.remove(ref)
            block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
        return block

    def _forget_landed(self) -> None:
        """Remove duplicates, and storages whose copy has ended or been cancelled, from the queue."""
        going = (storage for ref in self._queue if (storage := ref()) is not None and storage.status is SWAPPING_OUT)
        self._queue = deque(storage.me for storage in dict.fromkeys(going))

    def gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """Allocate a block without an eviction; None if that is not possible. high: near the top of the arena.
        If enough bytes are free in total, blocks are slid together, which costs little. Otherwise blocks that are being
        copied out are freed, the earliest first; the next user of their bytes, not the host, waits for the copies."""
        state, arena = self.state, self.state.arena
        need = arena.rounded(nbytes)
        self.free_landed()
        block = arena.allocate(nbytes, owner, high=high)
        if block is not None:
            return block
        while True:
            if arena.free_bytes >= need:
                slide = arena.cheapest_slide(need, in_flight)
                if slide is not None:
                    slide_blocks(state.allocator, *slide)
            block = arena.allocate(nbytes, owner, high=high)
            if block is not None or not self.free_one():
                return block

    def free_landed(self) -> None:
        """Free the blocks whose swap-outs have ended, or end so soon that the next call would not wait for them."""
        state, queue = self.state, self._queue
        while queue:
            storage = queue[0]()
            if storage is not None and storage.status is SWAPPING_OUT:
                if not state.device.landed(storage.copied_out):
                    return
                state.allocator.finish_swap_out(storage)
            queue.popleft()

    def free_all(self) -> None:
        """Free all blocks that are being copied out. Their next users wait for the copies."""
        while self.free_one():
            pass

    def free_one(self) -> bool:
        """Free the block of the earliest swap-out, even if its copy still runs; return False if no swap-out runs."""
        while self._queue:
            storage = self._queue.popleft()()
            if storage is not None and storage.status is SWAPPING_OUT:
                self.state.allocator.finish_swap_out(storage)
                return True
        return False
