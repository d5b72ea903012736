"""The end of an iteration: what survives it is made real, its lineage is cut, and it is put where plans expect it.

Between two iterations survivors lie at the low end. Persistent tensors come first, and those that had to be swapped out
on demand come back; what the plan has taken away stays away. Above them lies what else has survived (gradients, as a
rule, which the next iteration frees first).
"""

from __future__ import annotations

from collections.abc import Collection

from minidl.errors import Unrecoverable
from minidl.memory.allocator import Allocator
from minidl.memory.freeing import Freeing
from minidl.memory.lineage import missing_calls
from minidl.memory.replay import Replay
from minidl.memory.residency import Residency
from minidl.memory.room import in_flight
from minidl.memory.state import State
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_OUT, TAKEN, Storage, TensorId
from minidl.memory.tracker import GRADIENT_ID, SURVIVOR_STEP


class Boundary:
    """Ends iterations."""

    def __init__(self, state: State, freeing: Freeing, residency: Residency, replay: Replay) -> None:
        self.state = state
        self.freeing = freeing
        self.residency = residency
        self.replay = replay
        self._went_on = False  # this iteration, after an optimizer's step

    def goes_on(self) -> bool:
        """Whether the iteration goes on after an optimizer's step, which it does once: where the program holds a result
        whose gradient has not been taken, as what a GAN's generator has made while the discriminator takes its step."""
        tracker = self.state.tracker
        if self._went_on or not self._awaits_gradient():
            return False
        self._went_on, tracker.updated = True, False
        return True

    def _awaits_gradient(self) -> bool:
        return any(storage.requires_grad and storage.refs > storage.saved and (call := storage.call) is not None
                   and call.needs and call.saved is not TAKEN
                   for storage in (*self.state.live(), *self.state.missing()))

    def end_iteration(self, *, failed: bool = False) -> None:
        """Make survivors real and cut their lineage, so that nothing pins what this iteration read.

        After a failure nothing is computed any more: what was dropped keeps its lineage until someone asks for it, and
        is a leaf to the program all the same.
        Raises Unrecoverable, OutOfMemory.
        """
        state, self._went_on = self.state, False
        dropped = state.missing()
        # What has bytes becomes a leaf first: to make room for the others it may be swapped, but no longer dropped.
        for storage in state.live():
            if storage.call is not None:
                _cut(storage)
        if failed:  # whether a tensor has bytes or must be computed again is no difference to the program
            for storage in dropped:
                for call in missing_calls(storage) or ():
                    call.forget()
                storage.sever()
        for storage in [] if failed else dropped:
            if not storage.refs:
                continue  # one that was cut was the last to ask for it; others may still be computed by way of it
            if storage.status is RECOMPUTE:
                if missing_calls(storage) is None:
                    raise Unrecoverable(f"tensor {storage.tensor_id} was dropped and cannot be computed again")
                self.replay.replay(storage)
            _cut(storage)
        live = dict.fromkeys([*state.live(), *dropped])
        for storage in live:
            storage.access_count = 0
            storage.residency = int(storage.status not in (OUT, SWAPPING_OUT))  # what is away is still to come
            if not failed:
                storage.missing_readers = None  # nothing is missing now
        fresh = [storage for storage in live if 0 <= storage.tensor_id < SURVIVOR_STEP]  # made in this iteration
        _renumber(live)
        self.freeing.bury()
        state.impure = False
        if not failed:
            self.replay.end_iteration()
            if state.guide is not None:
                self._tidy(live, fresh)
        state.kept.clear()
        if state.access_list is not None:
            state.access_list.forget()
        self.residency.end_iteration()

    def _tidy(self, survivors: Collection[Storage], fresh: Collection[Storage]) -> None:
        """Little is left now, and wherever it lies it would split the space that the plan counts on."""
        state = self.state
        assert state.guide is not None
        known = state.guide.active.trace.tensors if state.guide.active is not None else {}
        with state.at_work:
            if state.guide.offsets and state.arena.compacts:
                pack_survivors(state, survivors, self.residency.away(),
                               passing=[storage for storage in fresh if storage.tensor_id not in known])
            elif state.guide.plans_ahead:  # the persistent end will do
                slide = state.arena.cheapest_slide(state.arena.free_bytes, in_flight)
                if slide is not None:
                    state.allocator.slide(*slide)


def _cut(storage: Storage) -> None:
    """Make a storage with bytes a leaf. One that only its own call had asked for is freed instead, and keeps its
    lineage: something dropped may have to be computed by way of it."""
    storage.sever()
    if storage.status is not RECOMPUTE:
        storage.call = None


def _renumber(survivors: Collection[Storage]) -> None:
    """Give what has outlived its iteration an id that no tensor of a later one has by its position.

    It is the same in every iteration: a parameter's gradient has one that follows from the parameter's; what was held
    before keeps its own, so that a program with masks or caches makes the same calls again; what is new takes the
    lowest that is free, so that one with a state that it replaces in each iteration soon does.
    """
    owners = {s.grad.storage.base: s for s in survivors if s.persistent and s.grad is not None}
    new = []
    for storage in survivors:
        if storage in owners:
            storage.tensor_id = GRADIENT_ID - owners[storage].tensor_id
        elif 0 <= storage.tensor_id < SURVIVOR_STEP or storage.tensor_id >= GRADIENT_ID:  # or no parameter's any more
            new.append(storage)
    taken: dict[int, set[TensorId]] = {}  # by position
    for storage in survivors:
        taken.setdefault(storage.tensor_id % SURVIVOR_STEP, set()).add(storage.tensor_id)
    for storage in new:
        position = storage.tensor_id % SURVIVOR_STEP
        tensor_id = position + SURVIVOR_STEP
        while tensor_id in taken[position]:
            tensor_id += SURVIVOR_STEP
        taken[position].add(tensor_id)
        storage.tensor_id = tensor_id


def pack_survivors(state: State, survivors: Collection[Storage], away: Collection[Storage],
                   passing: Collection[Storage] = ()) -> None:
    """Put everything that has survived, but for what is away, where plans expect it, as far as there is room.

    passing: what was made in this iteration and is not known to the next one, which frees it before its first call
    (gradients, mostly). It is moved only if it lies among what is persistent; if it stays after all, the next time.
    """
    allocator, arena = state.allocator, state.arena
    here = dict.fromkeys(survivors)
    for storage in away:
        here.pop(storage, None)
    for storage in here:
        if storage.persistent and storage.status is OUT:
            block = arena.allocate(storage.nbytes, storage.me)
            if block is not None:
                allocator.swap_in(storage, block)
                storage.residency = 1
    placed = sorted(((s.block.offset, s) for s in here if s.block is not None), key=lambda entry: entry[0])
    lasting = [s for _, s in placed if s.persistent]
    others = [s for _, s in placed if not s.persistent]
    gone = set(passing)
    staying = [s for s in others if s not in gone]
    end = _packed_end(lasting)
    if end is None:
        for storage in away:
            if storage.status is SWAPPING_OUT:
                allocator.finish_swap_out(storage)  # its bytes are written over when the copy has been made
        _pack(state, [*lasting, *others])
    elif any(s.status is SWAPPING_OUT for s in away):
        _move_down(state, staying, end)  # nothing waits for what is still being copied
    elif _packed_end(staying, end) is None:
        _pack(state, [*lasting, *others])


def _packed_end(here: list[Storage], end: int = 0) -> int | None:
    """Where storages in the order of their addresses end, if they lie one beside the other from an address on."""
    for storage in here:
        assert storage.block is not None
        if storage.block.offset != end:
            return None
        end += storage.block.size
    return end


def _move_down(state: State, storages: list[Storage], low: int) -> None:
    """Move what lies above where all of these would end, if they lay one beside the other from an address on, into the
    gaps between the others, as far as nothing else is there: under a plan with addresses these are its places."""
    high = low + sum(s.block.size for s in storages if s.block is not None)
    gaps, above, end = [], [], low  # in the order of their addresses
    for storage in storages:
        assert storage.block is not None
        if storage.block.offset + storage.block.size > high:
            above.append(storage)
            continue
        if storage.block.offset > end:
            gaps.append((end, storage.block.offset - end))
        end = storage.block.offset + storage.block.size
    gaps.append((end, high - end))
    for storage in sorted((s for s in above if s.status is IN), key=lambda s: -s.nbytes):
        assert storage.block is not None
        size = storage.block.size
        for room, offset in sorted((room, offset) for offset, room in gaps if room >= size):
            block = state.arena.allocate_at(offset, storage.nbytes, storage.me)
            if block is not None:
                state.allocator.move(storage, block)
                gaps.remove((offset, room))
                gaps.append((offset + size, room - size))
                break


def _pack(state: State, here: list[Storage]) -> None:
    """Slide storages together, and what is not persistent above the others, unless something is being copied."""
    allocator, arena = state.allocator, state.arena
    if any(map(in_flight, arena.blocks())):
        return
    _slide(allocator)
    highest = max((s.block.offset for s in here if s.persistent and s.block is not None), default=0)
    low = [s for s in here if not s.persistent and s.block is not None and s.block.offset < highest]
    for storage in low:
        block = arena.allocate(storage.nbytes, storage.me, high=True)
        if block is not None:
            allocator.move(storage, block)
    if low:
        _slide(allocator)


def _slide(allocator: Allocator) -> None:
    blocks = list(allocator.arena.blocks())
    allocator.slide(blocks[0], blocks[-1])
