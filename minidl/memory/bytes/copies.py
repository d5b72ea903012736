"""The copies out of bytes that are free again: which of them the next user of some of these bytes must wait for.

An arena unites a free block with its neighbours, and their marks. A plan gives out bytes whose neighbours are still
being copied out; if a call waited for those, too, it would come too late, and the plan would miss its prediction.
"""

from typing import TypeAlias

from minidl.device.clock import Marks
from minidl.memory.bytes.block import Block

MOST = 32
Copies: TypeAlias = list[tuple[int, int, int]]
"""The latest copies out of freed bytes: the position on the stream, the first byte, and the end. Position n is entry
n % MOST. Its tensor may be freed elsewhere later, so the bytes that are noted first are those that the copy reads."""


def no_copies() -> Copies:
    """Return the list of an arena in which nothing was copied out."""
    return [(0, 0, 0)] * MOST


def own_marks(block: Block, copies: Copies) -> Marks:
    """Return the marks of a block that was cut out of a free one, without copies out of the bytes beside it."""
    computed, copied_out, copied_in = block.marks
    end = block.offset + block.size
    forgotten = max(copies)[0] - MOST  # the last copy that may have been overwritten in the list
    its = [position for position, first, stop in copies if first < end and block.offset < stop]
    return computed, min(copied_out, max(forgotten, 0, *its)), copied_in
