"""Allocates and frees blocks of one arena, at the addresses that its placement chooses.
Never reads or writes the bytes.

The blocks of an arena, used and free, form one list in address order that covers it (``tiling``). Free blocks are also
in an index sorted by (size, offset), so best fit is one bisection. Any other placement is shown the holes, and answers
with an address. Two free blocks never touch: a block that is freed is united with its free neighbours at once.

Streams run behind the program that allocates. So a free block has marks, the last positions of the streams that used
it, and its next user waits for these. A block that is cut or united keeps the marks of all bytes that it contains.
Only a block at a given address does not wait for copies out of other bytes than its own (``copies``).
"""

from bisect import bisect_left, insort

from minidl.device.clock import NO_MARKS, Marks, unite_marks
from minidl.memory.bytes.block import Block
from minidl.memory.bytes.compaction import Compacting
from minidl.memory.bytes.copies import last_out_of, no_copies
from minidl.memory.bytes.tiling import Tiling
from minidl.meta import ALIGNMENT
from minidl.placements.best_fit import BestFit
from minidl.placements.placement import Placement

_new = Block.__new__


class Arena(Compacting):
    """An allocator of blocks in ``capacity`` bytes. Offsets and sizes are multiples of ``alignment`` bytes.

    compacts    True if blocks may be slid, and placed at given addresses; False if only the placement chooses addresses
    addresses   True if blocks have addresses; ``byte_count`` has an arena in which they have none
    used_bytes  bytes of all blocks in use, each rounded up to ``alignment``
    peak_bytes  the most bytes in use at once since the last ``reset_peak``, lent workspaces included"""

    addresses = True
    __slots__ = ("_alignment", "_copies", "_free_at", "_keys", "_last", "_mask", "_shift", "capacity", "peak_bytes",
                 "used_bytes")

    def __init__(self, capacity: int, *, alignment: int = ALIGNMENT, placement: Placement | None = None) -> None:
        if capacity < 0 or alignment < 1:
            raise ValueError(f"an arena of {capacity} bytes aligned to {alignment}")
        self.capacity = capacity // alignment * alignment
        self.used_bytes = self.peak_bytes = self._last = 0  # _last: the highest position of the copies out so far
        self._alignment, self._copies = alignment, no_copies()
        tiling = Tiling(self.capacity, alignment, NO_MARKS)
        self._keys, self._free_at, self._shift, self._mask = tiling.keys, tiling.free_at, tiling.shift, tiling.mask
        # Best fit is built in, as None: it needs no list of holes for every operation.
        super().__init__(tiling, None if type(placement) is BestFit else placement,
                         compacts=placement is None or placement.compacts)

    @property
    def free_bytes(self) -> int:
        """Bytes of all free blocks together."""
        return self.capacity - self.used_bytes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block: under best fit the largest request that would succeed."""
        return self._keys[-1] >> self._shift if self._keys else 0

    def fits(self, nbytes: int) -> bool:
        """True if a block of ``nbytes`` could be allocated now."""
        size = self.rounded(nbytes)
        if self._placement is None:
            return size <= self.largest_free
        holes = self._tiling.holes(size)
        return bool(holes) and self._placement.place(size, holes, high=False) is not None

    def reset_peak(self) -> None:
        """Set ``peak_bytes`` to the bytes in use now."""
        self.peak_bytes = self.used_bytes

    def allocate(self, nbytes: int, owner: object, *, high: bool = False) -> Block | None:
        """Allocate a block of at least ``nbytes``; None if no free block is large enough.
        owner: the object in the block's field ``owner`` from now on; not None. Best fit takes the low end of the
        smallest free block that fits, the lowest of equals; with ``high`` the top of the highest free block that fits.
        The new block has the marks of that free block."""
        if owner is None:
            raise AssertionError("a block needs an owner: None means free")
        if nbytes < 0:
            raise AssertionError(f"allocation of {nbytes} bytes")
        alignment = self._alignment
        size = -(-nbytes // alignment) * alignment or alignment  # two empty tensors still have two addresses
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
        block = _new(Block)  # its fields are set here, as every operation comes by: a call of __init__ takes longer
        block.offset, block.size, block.owner, block.marks = offset, size, owner, free.marks
        block.previous, block.next = previous, following
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
        """Return the smallest free block that holds ``nbytes``, as scratch memory; None if none is large enough.
        It stays free: the borrower uses its low end, and calls :meth:`touched` before the next allocation or free."""
        alignment, keys = self._alignment, self._keys
        size = -(-nbytes // alignment) * alignment
        index = bisect_left(keys, size << self._shift)
        if index == len(keys):
            return None
        if self.used_bytes + size > self.peak_bytes:
            self.peak_bytes = self.used_bytes + size
        return self._free_at[keys[index] & self._mask]

    def touched(self, block: Block, marks: Marks) -> None:
        """End the loan of a block (:meth:`lend`), last used at ``marks``, by no copy out. Raises AssertionError."""
        if block.owner is not None or marks[1]:
            raise AssertionError(f"{block} was lent, and is not free, or was copied out: {marks}")
        block.marks = unite_marks(block.marks, marks)

    def allocate_at(self, offset: int, nbytes: int, owner: object) -> Block | None:
        """Allocate a block of ``nbytes`` at ``offset``; None if some of these bytes are in use, or not ``compacts``.
        The new block has the marks of the free block it is cut from, but for copies out of bytes beside it."""
        if owner is None or offset % self._alignment:
            raise AssertionError(f"a block at {offset}, aligned to {self._alignment}, for {owner}")
        if not self.compacts:
            return None
        block = self._counted(self._tiling.carve(offset, self.rounded(nbytes), owner))
        if block is not None and block.marks[1]:
            computed, copied_out, copied_in = block.marks
            own = last_out_of(self._copies, offset, offset + block.size)
            block.marks = computed, min(copied_out, own), copied_in
        return block

    def _place(self, placement: Placement, size: int, owner: object, *, high: bool) -> Block | None:
        """Allocate a block where the placement says, perhaps larger than ``size``; None if it finds no hole.
        Raises AssertionError if the placement answers with bytes that are in use or not aligned."""
        holes = self._tiling.holes(size)
        place = placement.place(size, holes, high=high) if holes else None
        if place is None:
            return None
        odd = place.offset % self._alignment or place.size % self._alignment
        wrong = "its size is less" if place.size < size else odd and f"it has no multiples of {self._alignment}"
        block = None if wrong else self._counted(self._tiling.carve(place.offset, place.size, owner))
        if block is None:
            raise AssertionError(f"placement {placement.name!r} answers {place} for {size} bytes, and "
                                 f"{wrong or f'it lies in none of the holes {holes}'}")
        placement.taken(place)
        return block

    def _counted(self, block: Block | None) -> Block | None:
        if block is not None:
            self.used_bytes += block.size
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return block

    def free(self, block: Block, marks: Marks) -> None:
        """Free a block that was last used at the stream positions ``marks``. Raises AssertionError if it is free."""
        if block.owner is None:
            raise AssertionError(f"double free of the block of {block.size} bytes at {block.offset}")
        block.owner = None
        size = block.size
        self.used_bytes -= size
        if copy := marks[1]:
            self._copies.append((copy, block.offset, block.offset + size, self._last))
            self._last = max(copy, self._last)
        # The block's own marks stay: an owner that never ran has not waited for them.
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
        block.size, block.marks = size, marks
        insort(keys, size << shift | block.offset)

    def check(self) -> None:
        """Raise AssertionError unless blocks tile the arena, no two free ones touch, and index and counters agree."""
        used = self._tiling.check()
        if used != self.used_bytes or self.peak_bytes < used:
            raise AssertionError(f"{used} bytes are used, counted {self.used_bytes}, with a peak of {self.peak_bytes}")

    def rounded(self, nbytes: int) -> int:
        """Return ``nbytes`` rounded up to a multiple of the alignment, at least one alignment."""
        return -(-max(nbytes, 1) // self._alignment) * self._alignment
