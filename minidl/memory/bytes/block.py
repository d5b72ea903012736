"""Defines Block, a contiguous range of an arena, linked with its neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from minidl.device.clock import Marks


class Block:
    """A range of an arena: free (``owner`` is None) or in use by its owner.

    ``offset`` and ``size`` are in bytes; ``previous`` and ``next`` are the neighbours in address order, or None.
    ``marks`` are the positions of the streams for which the block's next user must wait. Each allocation makes a new
    Block object, which is never in use again after it was freed; so a second free of it is detected."""

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
    """Yield the blocks from ``first`` to ``last`` in address order, both included.
    Do not allocate, free or slide while iterating."""
    block: Block | None = first
    while block is not None:
        yield block
        block = None if block is last else block.next
