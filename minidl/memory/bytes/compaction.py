"""Makes one hole of scattered free bytes: finds the cheapest blocks to evict, or to slide together, and slides them.

Both searches move a window, a range of neighbouring blocks, over the arena in address order. It takes in blocks at its
high end, and drops at its low end those that it does not need, so each block enters and leaves once. The searches
change nothing; ``slide`` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import fsum, inf

from minidl.device.clock import NO_MARKS, unite_marks
from minidl.memory.bytes.block import Block, between
from minidl.memory.bytes.tiling import Tiling
from minidl.placements.placement import Hole, Placement


class Compacting:
    """The part of an arena that makes one hole of several. compacts: False if the placement forbids to move blocks."""

    __slots__ = ("_placement", "_tiling", "compacts")

    def __init__(self, tiling: Tiling, placement: Placement | None, *, compacts: bool) -> None:
        self._tiling = tiling
        self._placement = placement
        self.compacts = compacts

    def blocks(self) -> Iterator[Block]:
        """All blocks in address order. Do not allocate, free or slide while iterating."""
        return self._tiling.blocks()

    def around(self, count: int) -> list[Block]:
        """The largest free block and at most ``count`` blocks on either side, in address order. Needs a free block."""
        middle = self._tiling.largest()
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

    def slide(self, first: Block, last: Block) -> list[tuple[Block, int]]:
        """Give the blocks in use from ``first`` to ``last`` new offsets at the low end of their range.
        The free bytes of the range become one free block at its high end. Returns the blocks that moved, each with its
        old offset, in ascending order; none if the placement forbids slides. The caller must then move the bytes, in
        this order and with memmove semantics; so no move overwrites bytes that are still to be moved. The free block
        and each moved block get the united marks of all of them: the caller waits for these marks before it moves
        bytes, and then sets the free block's marks to its last move."""
        members = list(between(first, last))
        if members[-1] is not last:
            raise AssertionError(f"{last} does not follow {first}")
        if last.next is not None and last.next.owner is None:
            members.append(last.next)  # at the high end already, so it joins without changing the moves
        free_blocks = [block for block in members if block.owner is None]
        if not free_blocks or not self.compacts:
            return []
        previous, following = first.previous, members[-1].next
        for block in free_blocks:
            self._tiling.remove(block)
        moved, rest = pack(members)
        marks = NO_MARKS
        for block in (*free_blocks, *[block for block, _ in moved]):
            marks = unite_marks(marks, block.marks)
        for block, _ in moved:
            block.marks = marks
        packed = [block for block in members if block.owner is not None]
        self._tiling.splice(previous, [*packed, Block(*rest, None, marks, None, None)], following)
        return moved

    def cheapest_slide(self, nbytes: int, fixed: Callable[[Block], bool] | None = None,
                       blocks: Iterable[Block] | None = None) -> tuple[Block, Block] | None:
        """The range of blocks, as (first, last), whose slide makes a hole of ``nbytes`` by moving the fewest bytes.
        fixed: True for a block that must not be moved. blocks: where to search; all blocks by default. None if there
        is no such range, or if the placement forbids slides."""
        among = self.blocks() if blocks is None else blocks
        return cheapest_slide(among, max(nbytes, 1), fixed) if self.compacts else None

    def cheapest_window(self, nbytes: int, cost: Callable[[Block], float | None],
                        blocks: Iterable[Block] | None = None) -> tuple[float, list[Block]] | None:
        """The adjacent blocks that are cheapest to evict so that ``nbytes`` can be placed there, as (cost, blocks).
        cost: as in the function :func:`cheapest_window`. blocks: where to search; all blocks by default. None if there
        are no such blocks."""
        unit, placement = self._tiling.alignment, self._placement
        need = -(-max(nbytes, 1) // unit) * unit

        def suffices(offset: int, size: int) -> bool:
            return size >= need and (
                placement is None or placement.place(need, [Hole(offset, size)], high=False) is not None)
        return cheapest_window(self.blocks() if blocks is None else blocks, suffices, cost)


def cheapest_slide(blocks: Iterable[Block], need: int,
                   fixed: Callable[[Block], bool] | None = None) -> tuple[Block, Block] | None:
    """The range of blocks, as (first, last), with the fewest bytes in use among ranges with ``need`` free bytes.
    The lowest of equals; None if there is none. fixed: True for a block that must not be moved; no range contains
    it."""
    best: tuple[int, Block, Block] | None = None
    window: deque[Block] = deque()
    free = owned = 0
    for block in blocks:
        if fixed is not None and block.owner is not None and fixed(block):
            window.clear()
            free = owned = 0
            continue
        window.append(block)
        if block.owner is not None:
            owned += block.size
            continue
        free += block.size
        # Drop from the low end all blocks that are not needed: the rest is the cheapest range that ends here.
        while window[0].owner is not None or free - window[0].size >= need:
            dropped = window.popleft()
            if dropped.owner is not None:
                owned -= dropped.size
            else:
                free -= dropped.size
        if free >= need and (best is None or owned < best[0]):
            best = (owned, window[0], block)
    return best and best[1:]


def pack(members: Iterable[Block]) -> tuple[list[tuple[Block, int]], tuple[int, int]]:
    """Give the blocks in use among ``members``, a range in address order, its lowest offsets.
    Returns the blocks that moved, each with its old offset, and (offset, nbytes) of the free rest at the high end."""
    moved = []
    offset = end = -1
    for block in members:
        if offset < 0:
            offset = block.offset
        end = block.offset + block.size
        if block.owner is not None:
            if block.offset != offset:
                moved.append((block, block.offset))
                block.offset = offset
            offset += block.size
    return moved, (offset, end - offset)


def cheapest_window(blocks: Iterable[Block], suffices: Callable[[int, int], bool],
                    cost: Callable[[Block], float | None]) -> tuple[float, list[Block]] | None:
    """The adjacent blocks that cost least to evict, among those whose bytes suffice; the lowest of equals.
    Returns their cost and the blocks in use among them, or None if there are no such blocks. suffices: True if a hole
    (offset, nbytes) would be large enough. cost: the cost of evicting a block in use (finite, at least 0, any unit), or
    None if it must not be evicted. Free blocks cost nothing."""
    least = inf
    best: list[tuple[Block, float]] | None = None
    window: deque[tuple[Block, float]] = deque()
    size, total = 0, 0.0
    for block in blocks:
        price = 0.0 if block.owner is None else cost(block)
        if price is None:
            window.clear()
            size, total = 0, 0.0
            continue
        if not 0.0 <= price < inf:
            raise AssertionError(f"the cost of evicting {block} is {price}")
        window.append((block, price))
        size += block.size
        total += price
        end = block.offset + block.size
        while len(window) > 1:
            rest = size - window[0][0].size
            if not suffices(end - rest, rest):
                break
            _, price = window.popleft()
            size = rest
            # A block alone costs exactly its price: rounding of the sum must not make a free block cost something.
            total = total - price if len(window) > 1 else window[0][1]
        if total < least and suffices(end - size, size):
            least, best = total, list(window)
    if best is None:
        return None
    return fsum(price for _, price in best), [block for block, _ in best if block.owner is not None]
