"""Chooses the algorithm of a call: the fastest whose workspace fits into a free block."""

from collections.abc import Sequence

from minidl.device.clock import COMPUTE
from minidl.memory.bytes.block import Block
from minidl.memory.room import RoomMaker, with_bytes
from minidl.memory.state import MemoryState
from minidl.memory.storage import Storage
from minidl.meta import Algorithm
from minidl.op import Signature


class Workspaces:
    """Chooses the algorithm of each call, and lends it a free block as its workspace.
    slower_seconds: what the program's calls have taken longer so far than with their fastest algorithms."""

    def __init__(self, state: MemoryState, room: RoomMaker) -> None:
        self.state = state
        self.room = room
        self.slower_seconds = 0.0

    def choose(self, signature: Signature, operands: Sequence[Storage]) -> tuple[Algorithm, Block | None]:
        """Return the fastest algorithm for whose workspace there is a free block, and that block.
        The block is None if the algorithm needs no workspace. operands: the call's inputs and outputs, which stay. An
        algorithm that is faster than the plan's is not tried. Blocks are slid together where that saves time, but
        tensors are evicted only for the smallest workspace. Raises OutOfMemory if that finds no room."""
        state, arena, algorithms = self.state, self.state.arena, signature.algorithms
        named = state.hooks.algorithm(signature)
        names = [algorithm.name for algorithm in algorithms] if named is not None else []
        first = names.index(named) if named in names else 0
        block: Block | None = None
        for position, algorithm in enumerate(algorithms[first:], first):
            if not algorithm.workspace:
                break
            block = arena.lend(algorithm.workspace)
            if block is None and position + 1 < len(algorithms) and not state.hooks.places:
                gain_seconds = algorithms[position + 1].seconds - algorithm.seconds
                if self.room.one_hole.slide_for(algorithm.workspace, gain_seconds):
                    block = arena.lend(algorithm.workspace)
            if block is not None:
                break
        else:
            algorithm = min(algorithms, key=lambda a: a.workspace)
            self.room.make(algorithm.workspace, with_bytes(*operands), signature.op.name)
            block = arena.lend(algorithm.workspace)
            assert block is not None
        if block is not None:
            state.device.wait_marks(COMPUTE, block.marks)
        if algorithm is not algorithms[0] and state.tracker.keep_log:  # replays have their own seconds
            self.slower_seconds += algorithm.seconds - algorithms[0].seconds
        return algorithm, block
