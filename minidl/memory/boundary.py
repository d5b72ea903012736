"""What lies where between two iterations: survivors at the low end, where a plan with addresses counts on them.

Persistent tensors come first, and those that passive mode had to swap out come back; above them lies what else has
survived (gradients, as a rule, which the next iteration frees first). Decides nothing about an iteration itself.
"""

from __future__ import annotations

from collections.abc import Collection

from minidl.memory.copies import Allocator
from minidl.memory.space import in_flight
from minidl.memory.storage import IN, OUT, Storage


def pack_survivors(allocator: Allocator, storages: Collection[Storage]) -> None:
    """Put everything that has survived where plans expect it, as far as there is room and nothing is being copied."""
    arena = allocator.arena
    others = []
    for storage in storages:
        if not storage.persistent:
            others.append(storage)
        elif storage.status is OUT:
            block = arena.allocate(storage.nbytes, storage.me)
            if block is not None:
                allocator.swap_in(storage, block)
    if any(map(in_flight, arena.blocks())):
        return
    _slide(allocator)
    highest = max((s.block.offset for s in storages if s.persistent and s.block is not None), default=0)
    low = [s for s in others if s.status is IN and s.block is not None and s.block.offset < highest]
    for storage in low:
        block = arena.allocate(storage.nbytes, storage.me, high=True)
        if block is not None:
            allocator.move(storage, block)
    if low:
        _slide(allocator)


def _slide(allocator: Allocator) -> None:
    blocks = list(allocator.arena.blocks())
    allocator.slide(blocks[0], blocks[-1])
