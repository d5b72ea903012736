"""Relocation: a tensor that occupies a planned address of another one is moved to a hole elsewhere."""

from __future__ import annotations

from collections.abc import Collection

from minidl.memory.allocator import storage_of
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block
from minidl.memory.moving import move_storage
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, Storage
from minidl.placements.placement import Hole


def relocate(state: MemoryState, storage: Storage, offset: int, stays: Collection[Block] = ()) -> Block | None:
    """Allocate the block at ``offset``, a storage's planned address, after moving the tensors there elsewhere.
    None if these tensors do not all fit into holes elsewhere; then none is moved. They have no planned address, or are
    not at theirs. Without the moves the storage would not get its address either, and so on for the rest of the
    iteration. stays: blocks that must not be moved."""
    arena, end = state.arena, offset + state.arena.rounded(storage.nbytes)
    if not arena.compacts:
        return None
    holes, others = _apart(arena, offset, end)
    if sum(block.size for block in others) > end - offset:
        return None
    moving: list[tuple[Storage, int]] = []
    for block in sorted(others, key=lambda block: -block.size):
        other = storage_of(block)
        fitting = [hole for hole in holes if hole.size >= block.size]
        if other is None or other.status is not IN or block in stays or not fitting:
            return None  # it fits no hole, or it is being copied
        hole = min(fitting, key=lambda hole: hole.size)
        holes.remove(hole)
        holes.append(Hole(hole.offset, hole.size - block.size))
        moving.append((other, hole.end - block.size))
    for other, to in moving:
        place = arena.allocate_at(to, other.nbytes, other.me)
        assert place is not None
        move_storage(state.allocator, other, place)
    return arena.allocate_at(offset, storage.nbytes, storage.me)


def _apart(arena: Arena, offset: int, end: int) -> tuple[list[Hole], list[Block]]:
    """The holes outside the range from ``offset`` to ``end``, and the blocks in use that overlap it."""
    holes, others = [], []
    for block in arena.blocks():
        stop = block.offset + block.size
        if block.owner is not None:
            if block.offset < end and offset < stop:
                others.append(block)
            continue
        parts = (block.offset, min(stop, offset)), (max(block.offset, end), stop)
        holes += [Hole(low, high - low) for low, high in parts if low < high]
    return holes, others
