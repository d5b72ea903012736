"""Packs survivors between two iterations of a plan with addresses: together at the low end of the arena.

Persistent tensors come first; those that were swapped out on demand come back, and those that the plan has evicted stay
away. Above them are the other survivors, mostly gradients, which the next iteration frees first.
"""

from __future__ import annotations

from collections.abc import Collection

from minidl.memory.allocator import Allocator
from minidl.memory.moving import move_storage, slide_blocks
from minidl.memory.one_hole import in_flight
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, OUT, SWAPPING_OUT, Storage


def pack_survivors(state: MemoryState, survivors: Collection[Storage], away: Collection[Storage],
                   passing: Collection[Storage] = ()) -> None:
    """Move the survivors that are not away to where plans expect them, as far as there is room.

    passing: survivors that the next iteration does not know, as it frees them before its first call (mostly gradients).
    They are moved only if they lie among persistent tensors; one that stays is moved the next time.
    """
    allocator, arena = state.allocator, state.arena
    here = dict.fromkeys(survivors)
    for storage in away:
        here.pop(storage, None)
    for storage in here:
        if storage.persistent and storage.status is OUT:
            block = arena.allocate(storage.nbytes, storage.me)
            if block is not None:
                allocator.swap_in(storage, block)
                storage.residency = 1
    placed = sorted(((s.block.offset, s) for s in here if s.block is not None), key=lambda entry: entry[0])
    lasting = [s for _, s in placed if s.persistent]
    others = [s for _, s in placed if not s.persistent]
    gone = set(passing)
    staying = [s for s in others if s not in gone]
    end = _packed_end(lasting)
    if end is None:
        for storage in away:
            if storage.status is SWAPPING_OUT:
                allocator.finish_swap_out(storage)  # its bytes are reused when the copy has ended
        _pack(state, [*lasting, *others])
    elif any(s.status is SWAPPING_OUT for s in away):
        _move_down(state, staying, end)  # no move waits for a copy
    elif _packed_end(staying, end) is None:
        _pack(state, [*lasting, *others])


def _packed_end(here: list[Storage], end: int = 0) -> int | None:
    """The end of storages, in the order of their addresses, if they lie side by side from an address on; else None."""
    for storage in here:
        assert storage.block is not None
        if storage.block.offset != end:
            return None
        end += storage.block.size
    return end


def _move_down(state: MemoryState, storages: list[Storage], low: int) -> None:
    """Pack storages from an address on by few moves: those beyond the packed end move into gaps between the others, as
    far as these are free. Under a plan with addresses the gaps are their places."""
    high = low + sum(s.block.size for s in storages if s.block is not None)
    gaps, above, end = [], [], low  # in the order of their addresses
    for storage in storages:
        assert storage.block is not None
        if storage.block.offset + storage.block.size > high:
            above.append(storage)
            continue
        if storage.block.offset > end:
            gaps.append((end, storage.block.offset - end))
        end = storage.block.offset + storage.block.size
    gaps.append((end, high - end))
    for storage in sorted((s for s in above if s.status is IN), key=lambda s: -s.nbytes):
        assert storage.block is not None
        size = storage.block.size
        for room, offset in sorted((room, offset) for offset, room in gaps if room >= size):
            block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
            if block is not None:
                move_storage(state.allocator, storage, block)
                gaps.remove((offset, room))
                gaps.append((offset + size, room - size))
                break


def _pack(state: MemoryState, here: list[Storage]) -> None:
    """Slide storages together, persistent ones below the others, unless some block is being copied."""
    allocator, arena = state.allocator, state.arena
    if any(map(in_flight, arena.blocks())):
        return
    _slide(allocator)
    highest = max((s.block.offset for s in here if s.persistent and s.block is not None), default=0)
    low = [s for s in here if not s.persistent and s.block is not None and s.block.offset < highest]
    for storage in low:
        block = arena.allocate(storage.nbytes, storage.me, high=True)
        if block is not None:
            move_storage(allocator, storage, block)
    if low:
        _slide(allocator)


def _slide(allocator: Allocator) -> None:
    blocks = list(allocator.arena.blocks())
    slide_blocks(allocator, blocks[0], blocks[-1])
