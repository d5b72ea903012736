"""Packs the survivors of an iteration at the low end of the arena, where a plan with addresses expects them.

Persistent tensors are lowest; those that were swapped out on demand come back, and those that the plan has evicted stay
on the host. Above them are the other survivors, mostly gradients, which the next iteration frees first.
"""

from collections.abc import Collection

from minidl.memory.allocator import Allocator
from minidl.memory.moving import move_storage, slide_blocks
from minidl.memory.one_hole import in_flight
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, OUT, SWAPPING_OUT, Storage


def pack_survivors(state: MemoryState, survivors: Collection[Storage], away: Collection[Storage],
                   passing: Collection[Storage] = ()) -> None:
    """Move the survivors to the low end of the arena, as far as there is room.
    away: the survivors that the plan has evicted, which stay on the host. passing: survivors that the next iteration
    frees before its first call (mostly gradients); they cause a move only if they lie among persistent tensors."""
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
    """The address after the last of some storages, if they lie side by side from the address ``end`` on; else None.
    here: the storages in the order of their addresses."""
    for storage in here:
        assert storage.block is not None
        if storage.block.offset != end:
            return None
        end += storage.block.size
    return end


def _move_down(state: MemoryState, storages: list[Storage], low: int) -> bool:
    """Pack storages from the address ``low`` on by few moves; True if one has moved.
    Only storages that lie beyond the end of the packed range move, into free ranges below it."""
    high = low + sum(s.block.size for s in storages if s.block is not None)
    edges = [(max(b.offset, low), min(b.offset + b.size, high)) for b in state.arena.blocks() if b.owner is None]
    gaps = [(end - begin, begin) for begin, end in edges if begin < end]
    above = [s for s in storages if s.block is not None and s.block.offset + s.block.size > high and s.status is IN]
    moved = False
    for storage in sorted(above, key=lambda s: -s.nbytes):
        size = state.arena.rounded(storage.nbytes)
        for room, offset in sorted(gap for gap in gaps if gap[0] >= size):
            block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
            if block is not None:
                move_storage(state.allocator, storage, block)
                gaps.remove((room, offset))
                gaps.append((room - size, offset + size))
                moved = True
                break
    return moved


def _move_up(state: MemoryState, storages: list[Storage], high: int) -> None:
    """Move the storages that begin below the address ``high`` to free bytes above it, as far as there is room."""
    for storage in storages:
        if storage.block is not None and storage.block.offset < high:
            block = state.arena.allocate(storage.nbytes, storage.me, high=True)
            if block is not None and block.offset >= high:
                move_storage(state.allocator, storage, block)
            elif block is not None:
                state.arena.free(block, block.marks)


def _pack(state: MemoryState, here: list[Storage]) -> None:
    """Slide all blocks together, the persistent ones of ``here`` lowest; do nothing if a block is being copied.
    Before, persistent ones that lie too high exchange places with others, in turns if few bytes are free."""
    allocator, arena = state.allocator, state.arena
    if any(map(in_flight, arena.blocks())):
        return
    lasting, others = [s for s in here if s.persistent], [s for s in here if not s.persistent]
    end = sum(s.block.size for s in lasting if s.block is not None)
    _move_up(state, others, end)
    while _move_down(state, lasting, 0):
        _move_up(state, others, end)
    _slide(allocator)
    highest = max((s.block.offset for s in lasting if s.block is not None), default=0)
    _move_up(state, others, highest)
    _slide(allocator)


def _slide(allocator: Allocator) -> None:
    blocks = list(allocator.arena.blocks())
    slide_blocks(allocator, blocks[0], blocks[-1])
