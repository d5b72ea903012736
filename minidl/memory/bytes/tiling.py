"""The blocks of an arena: a linked list in address order that covers it without gaps, and an index of the free blocks.

``Arena`` changes list and index directly where it has to be fast; all other changes are made here. ``check`` raises
AssertionError if list and index disagree, or blocks leave gaps.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from minidl.device.clock import Marks
from minidl.memory.bytes.block import Block
from minidl.placements.placement import Hole


class Tiling:
    """Blocks that cover ``capacity`` bytes without gaps, in multiples of ``alignment``.

    first    the lowest block; None if the capacity is 0
    free_at  the free blocks by their offset
    keys     for each free block the number size << shift | offset, ascending: the order by size, then by offset.
             One integer is faster to compare than a tuple
    mask     a key & mask is the offset of its block"""

    __slots__ = ("alignment", "capacity", "first", "free_at", "keys", "mask", "shift")

    def __init__(self, capacity: int, alignment: int, marks: Marks) -> None:
        self.capacity = capacity
        self.alignment = alignment
        self.shift = capacity.bit_length()
        self.mask = (1 << self.shift) - 1
        self.keys: list[int] = []
        self.free_at: dict[int, Block] = {}
        self.first: Block | None = None
        if capacity:
            self.splice(None, [Block(0, capacity, None, marks, None, None)], None)

    def blocks(self) -> Iterator[Block]:
        """All blocks in address order. Do not allocate, free or slide while iterating."""
        block = self.first
        while block is not None:
            yield block
            block = block.next

    def largest(self) -> Block:
        """The largest free block, the highest of equals. Needs a free block."""
        return self.free_at[self.keys[-1] & self.mask]

    def holes(self, size: int) -> Sequence[Hole]:
        """The holes of ``size`` bytes or more, by size and then by address."""
        mask, shift = self.mask, self.shift
        return [Hole(key & mask, key >> shift) for key in self.keys[bisect_left(self.keys, size << shift):]]

    def carve(self, offset: int, size: int, owner: object) -> Block | None:
        """Allocate a block of exactly these bytes; None if they are not all free.
        The new block, and what remains of the free block on either side, keep the free block's marks."""
        start = offset  # of the free block that these bytes must be in: planned addresses nest, so most start at one
        if start not in self.free_at:
            start = max(filter(offset.__ge__, self.free_at), default=-1)
            if start < 0:
                return None
        free = self.free_at[start]
        before, after = offset - start, start + free.size - offset - size
        if after < 0:
            return None
        self.remove(free)
        block = Block(offset, size, owner, free.marks, None, None)
        low = [Block(start, before, None, free.marks, None, None)] if before else []
        high = [Block(offset + size, after, None, free.marks, None, None)] if after else []
        self.splice(free.previous, [*low, block, *high], free.next)
        return block

    def splice(self, previous: Block | None, parts: Sequence[Block], following: Block | None) -> None:
        """Link ``parts``, in address order, between two blocks, and put the free ones among them into the index.
        previous, following: the blocks below and above; None at an end of the arena."""
        for part in parts:
            if part.owner is None:
                self.free_at[part.offset] = part
                insort(self.keys, part.size << self.shift | part.offset)
            part.previous = previous
            if previous is None:
                self.first = part
            else:
                previous.next = part
            previous = part
        assert previous is not None
        previous.next = following
        if following is not None:
            following.previous = previous

    def remove(self, block: Block) -> None:
        """Take a free block out of the index; the list of blocks keeps it."""
        del self.free_at[block.offset]
        del self.keys[bisect_left(self.keys, block.size << self.shift | block.offset)]

    def check(self) -> int:
        """Return the bytes in use. Raises AssertionError for a broken invariant.
        The blocks must cover the capacity without gaps or overlap, no two free ones may touch, and the index must have
        exactly the free blocks."""
        end = used = 0
        previous: Block | None = None
        free: dict[int, Block] = {}
        for block in self.blocks():
            if block.offset != end:
                raise AssertionError(f"{block} starts at {block.offset}, its left neighbour ends at {end}")
            if block.previous is not previous:
                raise AssertionError(f"{block} has {block.previous} on its left, not {previous}")
            if block.size <= 0 or block.size % self.alignment:
                raise AssertionError(f"{block}: {block.size} bytes are no multiple of {self.alignment}")
            if block.owner is not None:
                used += block.size
            else:
                if previous is not None and previous.owner is None:
                    raise AssertionError(f"{previous} and {block} are both free and touch")
                free[block.offset] = block
            end += block.size
            previous = block
        if end != self.capacity:
            raise AssertionError(f"blocks end at {end} of {self.capacity}")
        if self.free_at != free or self.keys != sorted(b.size << self.shift | b.offset for b in free.values()):
            raise AssertionError(f"the index holds {self.free_at}, the arena {free}")
        return used
