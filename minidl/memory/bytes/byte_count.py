"""An arena without addresses: an allocation succeeds whenever enough bytes are free, whatever lies between them.

Studies that place no tensor assume such a memory; a real device has none. Freed bytes keep the marks of the streams
that used them. The bytes that were freed first are used again first, and their next user waits for their marks.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from minidl.device.clock import NO_MARKS, Marks, unite_marks
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block
from minidl.meta import ALIGNMENT
from minidl.placements.placement import Placement


class ByteCount(Arena):
    """An arena of ``capacity`` bytes in which free bytes are never scattered.

    Blocks have offsets, but none has the bytes of an earlier one, so a device that holds bytes cannot use it."""

    addresses = False
    __slots__ = ("_blocks", "_freed", "_next")

    def __init__(self, capacity: int, *, alignment: int = ALIGNMENT, placement: Placement | None = None) -> None:
        super().__init__(capacity, alignment=alignment, placement=placement)
        self._blocks: dict[Block, None] = {}  # in use
        self._freed: deque[tuple[int, Marks]] = deque([(self.capacity, NO_MARKS)])  # bytes, marks; the oldest first
        self._next = 0  # the offset of the next block

    @property
    def largest_free(self) -> int:
        """Bytes of the largest request that would succeed: all that are free."""
        return self.free_bytes

    def fits(self, nbytes: int) -> bool:
        """True if a block of ``nbytes`` could be allocated now."""
        return self.rounded(nbytes) <= self.free_bytes

    def blocks(self) -> Iterator[Block]:
        """All blocks in use, the oldest first."""
        return iter(self._blocks)

    def cheapest_window(self, nbytes: int, cost: Callable[[Block], float | None],
                        blocks: Iterable[Block] | None = None) -> None:
        """Return None: blocks have no neighbours here, so there is no window. The arguments are not used."""

    def allocate(self, nbytes: int, owner: object, *, high: bool = False) -> Block | None:
        """Allocate a block of at least ``nbytes``; None if fewer bytes are free. owner: the block's, not None.
        ``high`` has no meaning here."""
        if owner is None:
            raise AssertionError("a block needs an owner: None means free")
        block = self._take(self.rounded(nbytes), owner)
        if block is not None:
            self._blocks[block] = None
        return block

    def lend(self, nbytes: int) -> Block | None:
        """Return a free block of ``nbytes``, as scratch memory, until :meth:`touched`; None if fewer bytes are free."""
        block = self._take(self.rounded(nbytes), None)
        if block is not None:
            self.used_bytes -= block.size
        return block

    def touched(self, block: Block, marks: Marks) -> None:
        """End the loan of a block (:meth:`lend`), last used at ``marks``. Raises AssertionError if it has an owner."""
        if block.owner is not None:
            raise AssertionError(f"{block} was lent, and is not free")
        self._freed.append((block.size, unite_marks(block.marks, marks)))

    def free(self, block: Block, marks: Marks) -> None:
        """Free a block that was last used at the stream positions ``marks``. Raises AssertionError if it is free."""
        if block.owner is None:
            raise AssertionError(f"double free of the block of {block.size} bytes at {block.offset}")
        block.owner = None
        del self._blocks[block]
        self.used_bytes -= block.size
        self._freed.append((block.size, unite_marks(block.marks, marks)))

    def check(self) -> None:
        """Raise AssertionError unless the bytes in use, the free bytes and the counters agree."""
        used, free = sum(block.size for block in self._blocks), sum(size for size, _ in self._freed)
        if used != self.used_bytes or used + free != self.capacity or self.peak_bytes < used:
            raise AssertionError(f"{used} bytes are used and {free} free of {self.capacity}, counted "
                                 f"{self.used_bytes}, with a peak of {self.peak_bytes}")

    def _take(self, size: int, owner: object) -> Block | None:
        """Take ``size`` free bytes, the bytes first that were freed first, as a block with their marks."""
        if size > self.free_bytes:
            return None
        marks, left = NO_MARKS, size
        while left:
            nbytes, used_at = self._freed.popleft()
            marks = unite_marks(marks, used_at)
            if nbytes > left:
                self._freed.appendleft((nbytes - left, used_at))
            left -= min(nbytes, left)
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        offset, self._next = self._next, self._next + size
        return Block(offset, size, owner, marks, None, None)


def arena(capacity: int, placement: Placement | None) -> Arena:
    """Return an arena of ``capacity`` bytes: one that only counts if the placement gives no addresses."""
    counts = placement is not None and not placement.addresses
    return (ByteCount if counts else Arena)(capacity, placement=placement)
