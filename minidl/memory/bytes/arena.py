"""Blocks in one arena: given out where its placement says, taken back, united. Knows sizes; never touches bytes or
devices.

The blocks of an arena, owned and free, form one list in address order that tiles it (``tiling``). Free blocks are also
in an index sorted by (size, offset), so that the best fit is one bisection away; any other placement is shown what is
free, and answers with a place. Two free blocks never touch: a block that is freed swallows its free neighbours at once.

Streams run behind the program that allocates, so a free block remembers when it was last used: its marks. Whoever
takes the block waits for these positions. Marks are only ever raised, never dropped: bytes that pass from one block
to another, by coalescing, carving or sliding, take them along.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from minidl.device.clock import NO_MARKS, Marks, unite_marks
from minidl.memory.bytes import compaction
from minidl.memory.bytes.block import Block, between
from minidl.memory.bytes.tiling import Tiling
from minidl.meta import ALIGNMENT
from minidl.placements.best_fit import BestFit
from minidl.placements.placement import Hole, Placement


class Arena:
    """Blocks in ``capacity`` bytes, rounded down to ``alignment``; offsets and sizes are multiples of it.

    ``compacts`` is the placement's: where it is False nothing is slid, and nothing placed at a given address.
    ``used_bytes`` are those of all owned blocks, rounded up as they are; ``peak_bytes`` the most used at once since
    the last :meth:`reset_peak`. Read only, all four.
    """

    __slots__ = ("_alignment", "_free_at", "_keys", "_mask", "_placement", "_shift", "_tiling", "capacity", "compacts",
                 "peak_bytes", "used_bytes")

    def __init__(self, capacity: int, *, alignment: int = ALIGNMENT, placement: Placement | None = None) -> None:
        if capacity < 0 or alignment < 1:
            raise ValueError(f"an arena of {capacity} bytes aligned to {alignment}")
        self.capacity = capacity // alignment * alignment
        self.compacts = placement is None or placement.compacts
        self.used_bytes = self.peak_bytes = 0
        # None is best fit, which needs no list of holes: it is asked for with every operation.
        self._placement = None if type(placement) is BestFit else placement
        self._alignment = alignment
        self._tiling = tiling = Tiling(self.capacity, alignment, NO_MARKS)
        self._keys, self._free_at, self._shift, self._mask = tiling.keys, tiling.free_at, tiling.shift, tiling.mask

    @property
    def free_bytes(self) -> int:
        """Bytes of all free blocks, however scattered."""
        return self.capacity - self.used_bytes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block: under best fit the largest request that would succeed."""
        return self._keys[-1] >> self._shift if self._keys else 0

    def fits(self, nbytes: int) -> bool:
        """Whether a block of ``nbytes`` could be allocated now."""
        size = self.rounded(nbytes)
        if self._placement is None:
            return size <= self.largest_free
        holes = self._tiling.holes(size)
        return bool(holes) and self._placement.place(size, holes, high=False) is not None

    def reset_peak(self) -> None:
        """Count the peak from what is used now."""
        self.peak_bytes = self.used_bytes

    def blocks(self) -> Iterator[Block]:
        """All blocks in address order. Do not allocate, free or slide while iterating."""
        return self._tiling.blocks()

    def allocate(self, nbytes: int, owner: object, *, high: bool = False) -> Block | None:
        """A block of at least ``nbytes`` for ``owner``, or None if the placement has no place for it.

        Best fit takes the smallest free block that fits, the lowest of equals, from its low end; with ``high`` the
        highest free block that fits, from its top. Its marks, and those of the rest, are those of that free block.
        """
        if owner is None:
            raise AssertionError("a block needs an owner: None means free")
        alignment = self._alignment
        if nbytes > 0:
            size = -(-nbytes // alignment) * alignment
        elif nbytes == 0:
            size = alignment  # two empty tensors still have two addresses
        else:
            raise AssertionError(f"allocation of {nbytes} bytes")
        if self._placement is not None:
            return self._place(self._placement, size, owner, high=high)
        keys, mask = self._keys, self._mask
        index = bisect_left(keys, size << self._shift)
        if index == len(keys):
            return None
        if high:
            index = bisect_left(keys, max(keys[index:], key=mask.__and__))
        offset = keys.pop(index) & mask
        free = self._free_at[offset]
        previous, following = free.previous, free.next
        rest = free.size - size
        if rest and high:
            free.size = rest
            previous = free
            insort(keys, rest << self._shift | offset, 0, index)  # smaller than before, so left of where it was
            offset += rest
        else:
            del self._free_at[offset]
            if rest:
                free.offset = end = offset + size
                free.size = rest
                following = self._free_at[end] = free
                insort(keys, rest << self._shift | end, 0, index)
        block = Block(offset, size, owner, free.marks, previous, following)
        if previous is None:
            self._tiling.first = block
        else:
            previous.next = block
        if following is not None:
            following.previous = block
        self.used_bytes = used = self.used_bytes + size
        if used > self.peak_bytes:
            self.peak_bytes = used
        return block

    def lend(self, nbytes: int) -> Block | None:
        """The smallest free block that holds ``nbytes``, for use at its low end; None if no free block is large enough.
        It stays free, though it counts in ``peak_bytes``: for what is over before anything is allocated or freed, and
        so leaves no trace that a placement would care about. Who has used it says so with :meth:`touched`."""
        alignment = self._alignment
        size = -(-nbytes // alignment) * alignment
        keys = self._keys
        index = bisect_left(keys, size << self._shift)
        if index == len(keys):
            return None
        if self.used_bytes + size > self.peak_bytes:
            self.peak_bytes = self.used_bytes + size
        return self._free_at[keys[index] & self._mask]

    def touched(self, block: Block, marks: Marks) -> None:
        """A free block that was lent was last used at ``marks``."""
        if block.owner is not None:
            raise AssertionError(f"{block} was lent, and is not free")
        block.marks = unite_marks(block.marks, marks)

    def allocate_at(self, offset: int, nbytes: int, owner: object) -> Block | None:
        """A block of ``nbytes`` that starts at ``offset``, or None if not all of these bytes are free, or if the
        placement alone says where blocks lie."""
        if owner is None or offset % self._alignment:
            raise AssertionError(f"a block at {offset}, aligned to {self._alignment}, for {owner}")
        if not self.compacts:
            return None
        alignment = self._alignment
        block = self._tiling.carve(offset, -(-max(nbytes, 1) // alignment) * alignment, owner)
        if block is not None:  # as in _counted, and flat: a plan with addresses asks for all its blocks here
            self.used_bytes += block.size
            if self.used_bytes > self.peak_bytes:
                self.peak_bytes = self.used_bytes
        return block

    def _place(self, placement: Placement, size: int, owner: object, *, high: bool) -> Block | None:
        """A block where the placement says, which may be larger than ``size``; None if it says nowhere."""
        holes = self._tiling.holes(size)
        place = placement.place(size, holes, high=high) if holes else None
        if place is None:
            return None
        wrong = place.size < size or place.offset % self._alignment or place.size % self._alignment
        block = None if wrong else self._counted(self._tiling.carve(place.offset, place.size, owner))
        if block is None:
            raise AssertionError(f"placement {placement.name!r} answers {place} for {size} bytes, and the holes are "
                                 f"{holes}")
        placement.taken(place)
        return block

    def _counted(self, block: Block | None) -> Block | None:
        if block is not None:
            self.used_bytes += block.size
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return block

    def free(self, block: Block, marks: Marks) -> None:
        """Give a block back, last used at ``marks``. Raises AssertionError if it is free already."""
        if block.owner is None:
            raise AssertionError(f"double free of the block of {block.size} bytes at {block.offset}")
        block.owner = None
        size = block.size
        self.used_bytes -= size
        # The block's own marks stay: an owner that never ran has not waited for them either.
        if block.marks != marks:
            marks = unite_marks(block.marks, marks)
        keys, shift = self._keys, self._shift
        previous, following = block.previous, block.next
        if following is not None and following.owner is None:
            del keys[bisect_left(keys, following.size << shift | following.offset)]
            del self._free_at[following.offset]
            size += following.size
            if following.marks != marks:
                marks = unite_marks(following.marks, marks)
            following = block.next = following.next
            if following is not None:
                following.previous = block
        if previous is not None and previous.owner is None:
            del keys[bisect_left(keys, previous.size << shift | previous.offset)]
            size += previous.size
            if previous.marks != marks:
                marks = unite_marks(previous.marks, marks)
            previous.next = following
            if following is not None:
                following.previous = previous
            block = previous
        else:
            self._free_at[block.offset] = block
        block.size = size
        block.marks = marks
        insort(keys, size << shift | block.offset)

    def slide(self, first: Block, last: Block) -> list[tuple[Block, int]]:
        """Pack the owned blocks of the range first..last towards its low end, in their order; the free bytes of the
        range become one free block at its high end, united with a free right neighbour.

        Returns the blocks that moved, each with its old offset, in ascending order: carried out in this order, with
        memmove semantics, no move overwrites bytes still to be moved. Under a placement that does not compact none do.
        The free block and every moved block get the united marks of the free and the moved blocks of the range: each
        now covers bytes of others. The caller waits for these before it moves bytes, and raises the free block's marks
        to its last move.
        """
        members = list(between(first, last))
        if members[-1] is not last:
            raise AssertionError(f"{last} does not follow {first}")
        if last.next is not None and last.next.owner is None:
            members.append(last.next)  # at the high end already, so it joins without changing what moves
        free_blocks = [block for block in members if block.owner is None]
        if not free_blocks or not self.compacts:
            return []
        previous, following = first.previous, members[-1].next
        for block in free_blocks:
            self._tiling.remove(block)
        moved, rest = compaction.pack(members)
        marks = NO_MARKS
        for block in (*free_blocks, *[block for block, _ in moved]):
            marks = unite_marks(marks, block.marks)
        for block, _ in moved:
            block.marks = marks
        packed = [block for block in members if block.owner is not None]
        self._tiling.splice(previous, [*packed, Block(*rest, None, marks, None, None)], following)
        return moved

    def around(self, count: int) -> list[Block]:
        """The largest free block, and at most ``count`` on either side of it, in address order. Needs a free block."""
        middle = self._free_at[self._keys[-1] & self._mask]
        found, block = [middle], middle.previous
        while block is not None and len(found) <= count:
            found.append(block)
            block = block.previous
        found.reverse()
        most, block = len(found) + count, middle.next
        while block is not None and len(found) < most:
            found.append(block)
            block = block.next
        return found

    def cheapest_slide(self, nbytes: int, fixed: Callable[[Block], bool] | None = None,
                       blocks: Iterable[Block] | None = None) -> tuple[Block, Block] | None:
        """The cheapest range to slide (``compaction.cheapest_slide``), of ``blocks`` or of all. None under a placement
        that does not compact."""
        among = self.blocks() if blocks is None else blocks
        return compaction.cheapest_slide(among, max(nbytes, 1), fixed) if self.compacts else None

    def cheapest_window(self, nbytes: int, cost: Callable[[Block], float | None],
                        blocks: Iterable[Block] | None = None) -> tuple[float, list[Block]] | None:
        """The cheapest window (``compaction.cheapest_window``) that ``nbytes`` can be placed in, of ``blocks`` or of
        all."""
        need, placement = self.rounded(nbytes), self._placement

        def suffices(offset: int, size: int) -> bool:
            return size >= need and (
                placement is None or placement.place(need, [Hole(offset, size)], high=False) is not None)
        return compaction.cheapest_window(self.blocks() if blocks is None else blocks, suffices, cost)

    def check(self) -> None:
        """Raise AssertionError unless blocks tile the arena in whole units, no two free blocks touch, the index is
        the set of free blocks, and the counters are true."""
        used = self._tiling.check()
        if used != self.used_bytes or self.peak_bytes < used:
            raise AssertionError(f"{used} bytes are used, counted {self.used_bytes}, with a peak of {self.peak_bytes}")

    def rounded(self, nbytes: int) -> int:
        """Bytes in whole units, at least one."""
        return -(-max(nbytes, 1) // self._alignment) * self._alignment
