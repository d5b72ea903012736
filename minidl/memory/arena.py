"""Best-fit placement of offsets in one arena. Knows sizes; never touches bytes or devices.

The blocks of an arena, owned and free, form one list in address order that tiles it. Free blocks are also in an index
sorted by (size, offset), so that the best fit is one bisection away. Two free blocks never touch: a block that is
freed swallows its free neighbours at once.

Streams run behind the program that allocates, so a free block remembers when it was last used: its marks. Whoever
takes the block waits for these positions. Marks are only ever raised, never dropped: bytes that pass from one block
to another, by coalescing, carving or sliding, take them along.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from math import fsum, inf

from minidl.device.clock import NO_MARKS, Marks, unite_marks
from minidl.meta import ALIGNMENT


class Block:
    """A range of an arena: free (``owner`` is None) or owned. One object is handed out once, so that freeing it again
    is always seen: owned -> free -> merged into a neighbour or carved up, and never owned again.

    ``offset`` and ``size`` are in bytes; ``previous`` and ``next`` are the neighbours in address order, or None. A
    block that was merged keeps its links as they were: nothing links to it, so they close no cycle.
    """

    __slots__ = ("marks", "next", "offset", "owner", "previous", "size")

    def __init__(self, offset: int, size: int, owner: object | None, marks: Marks,
                 previous: Block | None, following: Block | None) -> None:
        self.offset = offset
        self.size = size
        self.owner = owner
        self.marks = marks
        self.previous = previous
        self.next = following

    def __repr__(self) -> str:
        return f"Block({self.offset}+{self.size} {'free' if self.owner is None else 'owned'})"


def between(first: Block, last: Block) -> Iterator[Block]:
    """The blocks first..last in address order, both included. Do not allocate, free or slide while iterating."""
    block: Block | None = first
    while block is not None:
        yield block
        block = None if block is last else block.next


class Arena:
    """Blocks in ``capacity`` bytes, rounded down to ``alignment``; offsets and sizes are multiples of it.

    ``used_bytes`` are those of all owned blocks, rounded up as they are; ``peak_bytes`` the most used at once since
    the last :meth:`reset_peak`. Read only, all three.
    """

    __slots__ = ("_alignment", "_first", "_free_at", "_keys", "_mask", "_shift", "capacity", "peak_bytes", "used_bytes")

    def __init__(self, capacity: int, *, alignment: int = ALIGNMENT) -> None:
        if capacity < 0 or alignment < 1:
            raise ValueError(f"an arena of {capacity} bytes aligned to {alignment}")
        self.capacity = capacity // alignment * alignment
        self._alignment = alignment
        # A free block's key is its size, then its offset, in one integer: cheaper to compare than a tuple.
        self._shift = self.capacity.bit_length()
        self._mask = (1 << self._shift) - 1
        self._keys: list[int] = []
        self._free_at: dict[int, Block] = {}
        self.used_bytes = self.peak_bytes = 0
        self._first = Block(0, self.capacity, None, NO_MARKS, None, None) if self.capacity else None
        if self._first is not None:
            self._insert(self._first)

    @property
    def free_bytes(self) -> int:
        """Bytes of all free blocks, however scattered."""
        return self.capacity - self.used_bytes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block: the largest request that would succeed."""
        return self._keys[-1] >> self._shift if self._keys else 0

    def reset_peak(self) -> None:
        """Count the peak from what is used now."""
        self.peak_bytes = self.used_bytes

    def blocks(self) -> Iterator[Block]:
        """All blocks in address order. Do not allocate, free or slide while iterating."""
        block = self._first
        while block is not None:
            yield block
            block = block.next

    def allocate(self, nbytes: int, owner: object, *, high: bool = False) -> Block | None:
        """A block of at least ``nbytes`` for ``owner``, or None if no free block is large enough.

        Takes the smallest free block that fits, the lowest of equals, from its low end; with ``high`` the highest
        free block that fits, from its top. Its marks, and those of the rest, are those of that free block.
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
            self._first = block
        else:
            previous.next = block
        if following is not None:
            following.previous = block
        self.used_bytes = used = self.used_bytes + size
        if used > self.peak_bytes:
            self.peak_bytes = used
        return block

    def lend(self, nbytes: int) -> Block | None:
        """The free block that ``allocate`` would take ``nbytes`` from, at its low end; None if no free block is large
        enough. It stays free, though it counts in ``peak_bytes``: for what is over before anything is allocated or
        freed. Who has used it says so with :meth:`touched`."""
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
        """A block of ``nbytes`` that starts at ``offset``, or None if not all of these bytes are free."""
        if owner is None or offset % self._alignment:
            raise AssertionError(f"a block at {offset}, aligned to {self._alignment}, for {owner}")
        size = -(-max(nbytes, 1) // self._alignment) * self._alignment
        start = offset  # of the free block that these bytes must be in: planned addresses nest, so most start at one
        if start not in self._free_at:
            start = max(filter(offset.__ge__, self._free_at), default=-1)
            if start < 0:
                return None
        free = self._free_at[start]
        before, after = offset - start, start + free.size - offset - size
        if after < 0:
            return None
        del self._free_at[start]
        del self._keys[bisect_left(self._keys, free.size << self._shift | start)]
        previous, following = free.previous, free.next
        if before:
            previous = Block(start, before, None, free.marks, None, None)
            self._link(free.previous, previous)
            self._insert(previous)
        if after:
            following = Block(offset + size, after, None, free.marks, None, None)
            self._link(following, free.next)
            self._insert(following)
        block = Block(offset, size, owner, free.marks, previous, following)
        self._link(previous, block)
        self._link(block, following)
        self.used_bytes += size
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
        memmove semantics, no move overwrites bytes still to be moved. The free block and every moved block get the
        united marks of the free and the moved blocks of the range: each now covers bytes of others. The caller waits
        for these before it moves bytes, and raises the free block's marks to its last move.
        """
        members = [first]
        while members[-1] is not last:
            following = members[-1].next
            if following is None:
                raise AssertionError(f"{last} does not follow {first}")
            members.append(following)
        if last.next is not None and last.next.owner is None:
            members.append(last.next)  # at the high end already, so it joins without changing what moves
        previous, right = first.previous, members[-1].next
        offset, end = first.offset, members[-1].offset + members[-1].size
        free_blocks = [block for block in members if block.owner is None]
        if not free_blocks:
            return []
        marks = NO_MARKS
        for block in free_blocks:
            marks = unite_marks(marks, block.marks)
            del self._free_at[block.offset]
            del self._keys[bisect_left(self._keys, block.size << self._shift | block.offset)]
        moved = []
        for block in members:
            if block.owner is not None:
                if block.offset != offset:
                    moved.append((block, block.offset))
                    marks = unite_marks(marks, block.marks)
                    block.offset = offset
                self._link(previous, block)
                offset += block.size
                previous = block
        for block, _ in moved:
            block.marks = marks
        rest = Block(offset, end - offset, None, marks, None, None)
        self._link(previous, rest)
        self._link(rest, right)
        self._insert(rest)
        return moved

    def cheapest_slide(self, nbytes: int, fixed: Callable[[Block], bool] | None = None) -> tuple[Block, Block] | None:
        """The range of blocks, as (first, last), with the least owned bytes among those that hold ``nbytes`` free
        bytes or more; the lowest of equals. None if there is none: without ``fixed`` blocks, which may not be moved
        and so end a range, only if the arena has fewer free bytes."""
        need = max(nbytes, 1)
        best: tuple[int, Block, Block] | None = None
        window: deque[Block] = deque()
        free = owned = 0
        for block in self.blocks():
            if fixed is not None and block.owner is not None and fixed(block):
                window.clear()
                free = owned = 0
                continue
            window.append(block)
            if block.owner is not None:
                owned += block.size
                continue
            free += block.size
            # Drop from the low end all that is not needed: what is left is the cheapest range that ends here.
            while window[0].owner is not None or free - window[0].size >= need:
                dropped = window.popleft()
                if dropped.owner is not None:
                    owned -= dropped.size
                else:
                    free -= dropped.size
            if free >= need and (best is None or owned < best[0]):
                best = (owned, window[0], block)
        return best and best[1:]

    def cheapest_window(self, nbytes: int, cost: Callable[[Block], float | None]) -> tuple[float, list[Block]] | None:
        """The run of adjacent blocks of ``nbytes`` or more in total that costs least to empty, the lowest of equals:
        its cost and its owned blocks. None if there is no such run.

        Free blocks cost nothing; ``cost`` says what evicting an owned one costs (finite, at least 0; any unit), or
        None if it may not be evicted. It is asked once a block.
        """
        need = max(nbytes, 1)
        least = inf
        best: list[tuple[Block, float]] | None = None
        window: deque[tuple[Block, float]] = deque()
        size, total = 0, 0.0
        for block in self.blocks():
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
            while size - window[0][0].size >= need:
                dropped, price = window.popleft()
                size -= dropped.size
                # A block alone costs its price exactly: the sum's rounding must not make a free block cost.
                total = total - price if len(window) > 1 else window[0][1]
            if size >= need and total < least:
                least, best = total, list(window)
        if best is None:
            return None
        return fsum(price for _, price in best), [block for block, _ in best if block.owner is not None]

    def check(self) -> None:
        """Raise AssertionError unless blocks tile the arena in whole units, no two free blocks touch, the index is
        the set of free blocks, and the counters are true."""
        end = used = 0
        previous: Block | None = None
        free: dict[int, Block] = {}
        for block in self.blocks():
            if block.offset != end:
                raise AssertionError(f"{block} starts at {block.offset}, its left neighbour ends at {end}")
            if block.previous is not previous:
                raise AssertionError(f"{block} has {block.previous} on its left, not {previous}")
            if block.size <= 0 or block.size % self._alignment:
                raise AssertionError(f"{block}: {block.size} bytes are no multiple of {self._alignment}")
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
        if self._free_at != free or self._keys != sorted(b.size << self._shift | b.offset for b in free.values()):
            raise AssertionError(f"the index holds {self._free_at}, the arena {free}")
        if used != self.used_bytes or self.peak_bytes < used:
            raise AssertionError(f"{used} bytes are used, counted {self.used_bytes}, with a peak of {self.peak_bytes}")

    def _link(self, left: Block | None, right: Block | None) -> None:
        if left is None:
            self._first = right
        else:
            left.next = right
        if right is not None:
            right.previous = left

    def _insert(self, block: Block) -> None:
        self._free_at[block.offset] = block
        insort(self._keys, block.size << self._shift | block.offset)
