"""Moves bytes within the arena by copies on the compute stream: slides blocks together, or moves one tensor."""

from minidl.device.clock import COMPUTE, NO_MARKS, unite_marks
from minidl.memory.allocator import Allocator, storage_of
from minidl.memory.bytes.block import Block, between
from minidl.memory.storage import Storage


def slide_blocks(allocator: Allocator, first: Block, last: Block) -> None:
    """Move the used blocks from ``first`` to ``last`` to the low end of their range, so that one hole remains above."""
    device = allocator.device
    marks = NO_MARKS
    for block in between(first, last):
        storage = storage_of(block)
        if storage is not None:  # its copies under way use its present place
            marks = unite_marks(marks, (0, storage.copied_out, storage.copied_in))
        elif block.owner is None:
            marks = unite_marks(marks, block.marks)
    device.wait_marks(COMPUTE, marks)
    end = last.offset + last.size
    moved = allocator.arena.slide(first, last)
    for block, origin in moved:
        allocator.move(block.offset, origin, block.size)
    if moved:
        hole = moved[-1][0].next
        assert hole is not None and hole.owner is None
        # Copies into the vacated bytes must wait for the moves out of them.
        hole.marks = (device.positions[COMPUTE], hole.marks[1], hole.marks[2])
        start = hole.offset
        device.poison(start, end - start, hole.marks)


def move_storage(allocator: Allocator, storage: Storage, block: Block) -> None:
    """Copy the bytes of a storage to a fresh block, and free its old block."""
    origin = storage.block
    assert origin is not None
    allocator.device.wait_marks(COMPUTE, unite_marks(block.marks, (0, storage.copied_out, storage.copied_in)))
    nbytes = min(origin.size, block.size)  # a placement may have made either larger than the storage
    allocator.move(block.offset, origin.offset, nbytes)
    allocator.leave_device(storage)
    storage.block = block
