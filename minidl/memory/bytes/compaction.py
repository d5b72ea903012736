"""How free bytes become one piece: the cheapest blocks to evict, or to slide together.

Both searches move a window over the blocks in address order: it grows at its high end, and drops at its low end all
that is not needed, so each block enters and leaves once. Neither changes anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import fsum, inf

from minidl.memory.bytes.block import Block


def cheapest_slide(blocks: Iterable[Block], need: int,
                   fixed: Callable[[Block], bool] | None = None) -> tuple[Block, Block] | None:
    """The range of blocks, as (first, last), with the least owned bytes among those that hold ``need`` free bytes or
    more; the lowest of equals. None if there is none: without ``fixed`` blocks, which may not be moved and so end a
    range, only if there are fewer free bytes in all."""
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


def pack(members: Iterable[Block]) -> tuple[list[tuple[Block, int]], tuple[int, int]]:
    """Give the owned blocks of a range the lowest addresses that they can have there, in their order. Returns those
    that moved, each with its old offset, and (offset, nbytes) of what is left at the high end."""
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
    """The run of adjacent blocks that costs least to empty among those whose bytes suffice, the lowest of equals: its
    cost and its owned blocks. None if there is no such run.

    ``suffices`` says whether so many bytes from an offset on, (offset, nbytes), would do if they were free; with more
    on either side they would, too. Free blocks cost nothing; ``cost`` says what evicting an owned one costs (finite, at
    least 0; any unit), or None if it may not be evicted. It is asked once a block.
    """
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
            # A block alone costs its price exactly: the sum's rounding must not make a free block cost.
            total = total - price if len(window) > 1 else window[0][1]
        if total < least and suffices(end - size, size):
            least, best = total, list(window)
    if best is None:
        return None
    return fsum(price for _, price in best), [block for block, _ in best if block.owner is not None]
