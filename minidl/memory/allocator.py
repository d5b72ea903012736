"""The paper's Allocator: it swaps tensors between the device's arena and the host pool, when other code tells it to.

It keeps the marks that make reuse safe: a freed block carries the last positions of the streams that used it, and its
next user waits for these on its own stream. ``start_`` methods only queue a copy. ``swap_out`` and ``swap_in`` make the
host wait for it, as in the paper's passive mode.
"""

import weakref

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.contract import Device
from minidl.device.spill import Spill
from minidl.errors import HostShort
from minidl.memory.bytes.block import Block
from minidl.memory.bytes.byte_count import arena
from minidl.memory.bytes.host_pool import HostPool
from minidl.memory.bytes.tiered_pool import TieredPool
from minidl.memory.storage import IN, OUT, SWAPPING_IN, SWAPPING_OUT, Storage
from minidl.meta import aligned
from minidl.placements.placement import Placement


def storage_of(block: Block) -> Storage | None:
    """The storage whose bytes a block holds; None if it is free."""
    return block.owner() if isinstance(block.owner, weakref.ref) else None


class Allocator:
    """Owns the arena and the host pool, and queues the copies between them.

    swapped_out_bytes, swapped_in_bytes, moved_bytes: bytes copied to the host, back, and within the arena, so far.
    slid_seconds: the device's estimate for the copies within the arena."""

    def __init__(self, device: Device, budget_bytes: int, host_bytes: int, placement: Placement | None = None,
                 spill: Spill | None = None) -> None:
        self.device = device
        self.arena = arena(device.usable_bytes(budget_bytes), placement)
        self.host = HostPool(host_bytes) if spill is None else TieredPool(host_bytes, spill.nbytes)
        device.attach(self.arena.capacity, host_bytes)
        if spill is not None:
            device.spill_to(spill, host_bytes)
        self._positions = device.positions
        self._poisons = type(device).poison is not Device.poison
        self._host_read = 0  # position on the copy-in stream of the last copy whose host bytes were freed
        self.swapped_out_bytes = self.swapped_in_bytes = self.moved_bytes = 0
        self.slid_seconds = 0.0

    # Swapping ------------------------------------------------------------------------------------------------
    def swap_out(self, storage: Storage) -> bool:
        """Copy a storage to the host, and wait for the copy; False if the host pool is full. The block stays."""
        if not self.start_swap_out(storage):
            return False
        self.device.synchronize(COPY_OUT, storage.copied_out)
        storage.set_status(IN)
        return True

    def swap_in(self, storage: Storage, block: Block) -> None:
        """Copy a storage from the host into a fresh block, and wait for the copy."""
        self.start_swap_in(storage, block)
        self.device.synchronize(COPY_IN, storage.copied_in)
        self.finish_swap_in(storage)

    def start_swap_out(self, storage: Storage) -> bool:
        """Queue the copy of a storage to the host; False if the host pool is full. The block stays in use."""
        extents = self.host.allocate(storage.nbytes)
        if extents is None:
            return False
        device, block = self.device, storage.block
        assert block is not None
        device.wait(COPY_OUT, COMPUTE, self._positions[COMPUTE])
        device.wait(COPY_OUT, COPY_IN, self._host_read)
        try:
            storage.copied_out = device.copy_out(extents, block.offset, storage.nbytes)
        except HostShort as short:  # the machine has less host memory than was promised
            self.host.free(extents)
            self.host.limit(short.had_bytes)
            return self.start_swap_out(storage)  # the smaller pool may have room
        except BaseException:
            self.host.free(extents)
            raise
        storage.set_status(SWAPPING_OUT)
        storage.host = extents
        self.swapped_out_bytes += storage.nbytes
        return True

    def finish_swap_out(self, storage: Storage) -> None:
        """End a swap-out: free the storage's block. The block's next user waits for the copy, on its own stream."""
        self.leave_device(storage)
        storage.set_status(OUT)

    def start_swap_in(self, storage: Storage, block: Block) -> None:
        """Queue the copy from the host into a fresh block. The host copy stays valid until the tensor is written."""
        device = self.device
        assert storage.host is not None
        device.wait_marks(COPY_IN, block.marks)
        device.wait(COPY_IN, COPY_OUT, storage.copied_out)
        try:
            storage.copied_in = device.copy_in(block.offset, storage.host, storage.nbytes)
        except BaseException:
            self.arena.free(block, block.marks)  # its marks stay: its former users may still read it
            raise
        storage.block = block
        storage.set_status(SWAPPING_IN)
        self.swapped_in_bytes += storage.nbytes

    def finish_swap_in(self, storage: Storage) -> None:
        """End a swap-in: the compute stream will wait for the copy, and the storage counts as on the device."""
        self.device.wait(COMPUTE, COPY_IN, storage.copied_in)
        storage.set_status(IN)

    # Freeing -------------------------------------------------------------------------------------------------
    def leave_device(self, storage: Storage) -> None:
        """Free the block of a storage; if copies of it still run, the block's marks make its next user wait for them.
        """
        block = storage.block
        assert block is not None
        storage.block = None
        marks = (self._positions[COMPUTE], storage.copied_out, storage.copied_in)
        if self._poisons:
            self.device.poison(block.offset, block.size, marks)
        self.arena.free(block, marks)

    def take_back(self, block: Block, nbytes: int) -> None:
        """End the loan of a free block as a workspace: the compute stream has used its first ``nbytes``."""
        marks = (self._positions[COMPUTE], 0, 0)
        if self._poisons:
            self.device.poison(block.offset, aligned(nbytes), marks)
        self.arena.touched(block, marks)

    def forget_host_copy(self, storage: Storage) -> None:
        """Free the host copy of a storage, if it has one."""
        if storage.host is not None:
            self.host.free(storage.host)
            storage.host = None
            # A copy in may still be reading these host bytes: copies out into them wait for it.
            self._host_read = max(self._host_read, storage.copied_in)

    def move(self, to: int, origin: int, nbytes: int) -> None:
        """Copy bytes within the arena, on the compute stream, and count them. to, origin: offsets."""
        self.device.move(to, origin, nbytes)
        self.moved_bytes += nbytes
        self.slid_seconds += self.device.move_seconds(nbytes)

    def check(self) -> None:
        """Raises AssertionError unless arena and host pool are consistent."""
        self.arena.check()
        self.host.check()
