"""Starts the swap-ins, replays and relocations of a plan before each call, as far as there is room for them.

It also allocates blocks at planned addresses; a tensor that occupies an address planned for another is moved to a hole.
"""

import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from minidl.device.clock import COPY_IN
from minidl.errors import OutOfMemory, Unrecoverable
from minidl.memory.allocator import storage_of
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block
from minidl.memory.guided.follower import PlanFollower
from minidl.memory.guided.leaving import Leaving
from minidl.memory.leftovers import Leftovers
from minidl.memory.moving import move_storage
from minidl.memory.replay import Replay
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.placements.placement import Hole
from minidl.plan.plan import Action, Eviction, Move


class Ahead:
    """Starts the swap-ins, replays and moves that a plan has before the next call.

    due         storages to be swapped in, moved or replayed, as soon as there is room
    evicted     the storages that the plan has evicted in this iteration, by tensor id
    replays     ids of tensors to be replayed before the next call
    spent       tensors that the plan evicts once these replays have read them for the last time
    last_reads  the same as ``spent``, as tensor id -> action, while the replays run
    moves       tensors to be moved before the next call, each with its new address"""

    def __init__(self, state: MemoryState, replaying: Replay, follower: PlanFollower, leaving: Leaving,
                 leftovers: Leftovers) -> None:
        self.state = state
        self.leftovers = leftovers
        self.replaying = replaying
        self.follower = follower
        self.leaving = leaving
        self.due: deque[weakref.ref[Storage]] = deque()
        self.evicted: dict[TensorId, weakref.ref[Storage]] = {}
        self.replays: list[TensorId] = []
        self.spent: tuple[Eviction, ...] = ()
        self.last_reads: Mapping[TensorId, Action] = {}
        self.moves: tuple[Move, ...] = ()

    def start(self) -> None:
        """Start the moves and swap-ins that are due, then run the replays.
        A replay that is not possible now is skipped; its target is replayed when a call needs it."""
        if self.moves:
            self._move()
        self._prefetch()
        targets = [storage for tensor_id in self.replays if (storage := self.dropped(tensor_id)) is not None]
        self.last_reads = dict(self.spent) if targets else {}
        self.replays, self.spent = [], ()
        if targets:
            try:
                with suppress(OutOfMemory, Unrecoverable):
                    self.replaying.replay(*targets, alone=True)
            finally:
                self.last_reads = {}

    def _prefetch(self) -> None:
        """Start the swap-ins that are due, the earliest due first, as far as there is room; postpone the others."""
        state, queue = self.state, self.due
        while queue:
            storage = queue[0]()
            if storage is not None and storage.status is SWAPPING_OUT and self._takes_its_place(storage):
                queue.popleft()
                continue
            if storage is None or storage.status is not OUT:
                if storage is not None and storage.status is SWAPPING_OUT:
                    stay(storage)
                    state.access_list.touch((storage,))
                queue.popleft()
                continue
            state.arena_busy.on = True  # kept flat, as this comes before every other call
            try:
                block = self.place_at(storage, self.follower.address(storage), operands=tuple)  # no call is under way
                # At the persistent end: a block that is being filled cannot be moved, and would split the space.
                if block is None:
                    block = state.arena.allocate(storage.nbytes, storage.me, high=True)
                if block is None:
                    block = self.leaving.gather(storage.nbytes, storage.me, high=True)
                if block is not None:
                    storage.residency += 1
                    state.allocator.start_swap_in(storage, block)
            finally:
                state.arena_busy.on = False
            if block is None:
                return
            queue.popleft()

    def _move(self) -> None:
        """Move the tensors of ``moves`` to their next planned addresses, as far as these become free.
        A tensor may take the address that another tensor leaves in the same step. Tensors off the device stay there."""
        moves, self.moves = dict(self.moves), ()
        waiting = {s: moves[s.tensor_id] for ref in self.due
                   if (s := ref()) and s.status is IN and s.tensor_id in moves}
        tried = len(waiting) + 1
        with self.state.arena_busy:
            while waiting and len(waiting) < tried:
                tried = len(waiting)
                for storage, offset in list(waiting.items()):
                    block = self.place_at(storage, offset)
                    if block is not None:
                        move_storage(self.state.allocator, storage, block)
                        del waiting[storage]

    def _takes_its_place(self, storage: Storage) -> bool:
        """Start to swap a storage in at another planned address while its swap-out is still running.
        False if the plan has no other address for it, or if the bytes there are in use. Its present address is
        planned for other tensors."""
        state, address = self.state, self.follower.address(storage)
        assert storage.block is not None
        if address is None or address == storage.block.offset:
            return False
        with state.arena_busy:
            block = self.leaving.claim(storage, address)  # this may free its own block
            if block is None:
                return False
            if storage.status is SWAPPING_OUT:
                state.allocator.finish_swap_out(storage)
            storage.residency += 1
            state.allocator.start_swap_in(storage, block)
        return True

    def place_at(self, storage: Storage, address: int | None, donor: Callable[[int], Block | None] | None = None,
                 stays: Callable[[], Collection[Block]] = tuple,
                 operands: Callable[[], Collection[Storage]] | None = None) -> Block | None:
        """Allocate the block at a planned address for a storage; None if there is no address, or it stays occupied.
        If the bytes there are in use, an operand of the current call may donate them (donor: called with the address),
        or a relocation may clear them (stays: returns the blocks that must not be moved). Else tensors there that
        replays have computed are dropped (operands: returns those that must stay; None: all stay)."""
        if address is None:
            return None
        block = (self.leaving.claim(storage, address) or (donor(address) if donor is not None else None)
                 or relocate(self.state, storage, address, stays()))
        if block is None and operands is not None and self.state.kept:
            self.leftovers.drop_there(address, storage.nbytes, operands())
            block = self.leaving.claim(storage, address)
        return block

    def dropped(self, tensor_id: TensorId) -> Storage | None:
        """The storage with this id, if the plan has dropped it and the program still needs it; else None."""
        ref = self.evicted.get(tensor_id)
        storage = ref() if ref is not None else None
        return storage if storage is not None and storage.status is RECOMPUTE and storage.refs else None

    def away(self) -> list[Storage]:
        """The tensors that are off the device at an iteration's end because the plan has evicted them."""
        evicted = (ref() for ref in self.evicted.values())
        return [s for s in evicted if s is not None and s.status in (OUT, SWAPPING_OUT)]

    def forget(self, gone: Collection[TensorId]) -> None:
        """Cancel those swap-ins and moves of these tensors that have not started yet."""
        left = [ref for ref in self.due if (s := ref()) and s.tensor_id not in gone]
        self.due.clear()
        self.due.extend(left)

    def end_iteration(self) -> None:
        """Cancel all swap-ins, replays and moves of this iteration.
        ``evicted`` keeps the tensors that are away: the next iteration brings them back, or frees them."""
        self.due.clear()
        self.replays, self.spent, self.moves = [], (), ()
        self.evicted = {storage.tensor_id: storage.me for storage in self.away()}


def stay(storage: Storage) -> None:
    """Keep a tensor on the device although its swap-out has begun, as it is needed again; a new residency begins."""
    storage.set_status(IN)
    storage.residency += 1


def relocate(state: MemoryState, storage: Storage, offset: int, stays: Collection[Block] = ()) -> Block | None:
    """Allocate the block at ``offset``, a storage's planned address, after moving the tensors there elsewhere.
    None if these tensors do not all fit into holes elsewhere; then none is moved. They have no planned address, or are
    not at theirs. Without the moves the storage would not get its address either, and so on for the rest of the
    iteration. stays: blocks that must not be moved."""
    arena, end = state.arena, offset + state.arena.rounded(storage.nbytes)
    if not arena.compacts:
        return None
    holes, others = _apart(arena, offset, end)
    if sum(block.size for block in others) > end - offset:
        return None
    moving: list[tuple[Storage, int]] = []
    for block in sorted(others, key=lambda block: -block.size):
        other = storage_of(block)
        fitting = [hole for hole in holes if hole.size >= block.size]
        if other is None or block in stays or not fitting or other.status is not IN and not (
                other.status is SWAPPING_IN and state.device.landed(other.copied_in, COPY_IN)):
            return None  # it fits no hole, or it is being copied
        hole = min(fitting, key=lambda hole: hole.size)
        holes.remove(hole)
        holes.append(Hole(hole.offset, hole.size - block.size))
        moving.append((other, hole.end - block.size))
    for other, to in moving:
        place = arena.allocate_at(to, other.nbytes, other.me)
        assert place is not None
        move_storage(state.allocator, other, place)
    return arena.allocate_at(offset, storage.nbytes, storage.me)


def _apart(arena: Arena, offset: int, end: int) -> tuple[list[Hole], list[Block]]:
    """The holes outside the range from ``offset`` to ``end``, and the blocks in use that overlap it."""
    holes, others = [], []
    for block in arena.blocks():
        stop = block.offset + block.size
        if block.owner is not None:
            if block.offset < end and offset < stop:
                others.append(block)
            continue
        parts = (block.offset, min(stop, offset)), (max(block.offset, end), stop)
        holes += [Hole(low, high - low) for low, high in parts if low < high]
    return holes, others
