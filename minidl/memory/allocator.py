"""The paper's Allocator over the arena and the host pool: it carries out what the manager decides.

It moves bytes by the device's verbs and keeps the marks that make reuse safe: a freed block carries the last
positions of the streams that used it, and whoever uses it next waits for these on its stream. In passive mode copies
are synchronous: the host waits for each. Decides nothing.
"""

from __future__ import annotations

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.device import Device
from minidl.memory.arena import Arena, Block
from minidl.memory.host_pool import HostPool
from minidl.memory.storage import IN, SWAPPING_IN, SWAPPING_OUT, Storage


class Allocator:
    """Blocks, host copies, and the counters of what was moved (bytes, since the start)."""

    def __init__(self, device: Device, budget_bytes: int, host_bytes: int) -> None:
        self.device = device
        self.arena = Arena(budget_bytes)
        self.host = HostPool(host_bytes)
        device.attach(self.arena.capacity, host_bytes)
        self._positions = device.positions
        self.swapped_out_bytes = 0
        self.swapped_in_bytes = 0
        self.moved_bytes = 0

    def free(self, block: Block) -> None:
        """Free a block that only the compute stream has used since it was allocated."""
        marks = (self._positions[COMPUTE], 0, 0)
        self.device.poison(block.offset, block.size, marks)
        self.arena.free(block, marks)

    def leave_device(self, storage: Storage) -> None:
        """Free the block of a storage whose bytes are safe elsewhere, or not wanted."""
        block = storage.block
        assert block is not None
        storage.block = None
        marks = (self._positions[COMPUTE], self._positions[COPY_OUT], 0)
        self.device.poison(block.offset, block.size, marks)
        self.arena.free(block, marks)

    def swap_out(self, storage: Storage) -> bool:
        """Copy to the host, synchronously; False if the host has no room. The block stays."""
        extents = self.host.allocate(storage.nbytes)
        if extents is None:
            return False
        device, block = self.device, storage.block
        assert block is not None
        storage.become(SWAPPING_OUT)
        device.wait(COPY_OUT, COMPUTE, self._positions[COMPUTE])
        position = device.copy_out(extents, block.offset, storage.nbytes)
        self.swapped_out_bytes += storage.nbytes
        device.synchronize(COPY_OUT, position)
        storage.host = extents
        storage.become(IN)
        return True

    def swap_in(self, storage: Storage, block: Block) -> None:
        """Copy back from the host into a fresh block, synchronously; the host copy stays valid until written over."""
        device = self.device
        assert storage.host is not None
        storage.block = block
        storage.become(SWAPPING_IN)
        device.wait_marks(COPY_IN, block.marks)
        position = device.copy_in(block.offset, storage.host, storage.nbytes)
        self.swapped_in_bytes += storage.nbytes
        device.synchronize(COPY_IN, position)
        device.wait(COMPUTE, COPY_IN, position)
        storage.become(IN)

    def forget_host_copy(self, storage: Storage) -> None:
        """Give up a host copy, if there is one."""
        if storage.host is not None:
            self.host.free(storage.host)
            storage.host = None

    def slide(self, first: Block, last: Block) -> None:
        """Pack the blocks of a range together and move their bytes, in stream order."""
        device = self.device
        marks = (0, 0, 0)
        block: Block | None = first
        while block is not None:
            if block.owner is None:
                marks = tuple(map(max, marks, block.marks))  # type: ignore[assignment]
            block = None if block is last else block.next
        device.wait_marks(COMPUTE, marks)
        end = last.offset + last.size
        moved = self.arena.slide(first, last)
        for block, origin in moved:
            device.move(block.offset, origin, block.size)
            self.moved_bytes += block.size
        if moved:
            hole = moved[-1][0].next
            assert hole is not None and hole.owner is None
            # Copies into the vacated bytes must wait for the moves out of them.
            hole.marks = (self._positions[COMPUTE], hole.marks[1], hole.marks[2])
            start = hole.offset
            device.poison(start, end - start, hole.marks)

    def check(self) -> None:
        """Raises AssertionError unless arena and host pool are consistent."""
        self.arena.check()
        self.host.check()
