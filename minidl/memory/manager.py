"""The memory manager: makes inputs resident, finds room for outputs, obeys the policy. Knows no arrays and no op.

Room is found in this order: a free block; a donation; what the policy evicts, until enough is free in total; then one
piece is made of it, by the cheaper of evicting an address-contiguous window and sliding blocks together. Blocks in
use may be moved, never evicted. If even that fails, an input is copied to the host and its bytes are written over: so
an operation whose aligned working set fits the budget always runs.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minidl.device.clock import COMPUTE
from minidl.device.device import Device
from minidl.errors import OutOfMemory, Unrecoverable
from minidl.memory import donation
from minidl.memory.allocator import Allocator
from minidl.memory.arena import Block
from minidl.memory.guide import Actions, Guide
from minidl.memory.plan import Action, Policy, Residency
from minidl.memory.recompute import missing_calls, reads, replay_seconds
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.memory.tracker import GRADIENT_ID, SURVIVOR_STEP, Tracker
from minidl.meta import Algorithm, aligned
from minidl.op import Call
from minidl.units import format_bytes


class Manager:
    """Memory of one device under one policy. ``replay`` is set by the executor: it makes a dropped storage again."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int) -> None:
        self.device = device
        self.policy = policy
        self.tracker = tracker
        self.allocator = Allocator(device, budget_bytes, host_bytes)
        self.arena = self.allocator.arena
        self.residents: dict[weakref.ref[Storage], None] = {}  # every storage with bytes on the device or the host
        self.dropped: dict[weakref.ref[Storage], None] = {}  # RECOMPUTE, though someone may still ask for it
        self.protected: set[Storage] = set()  # may be swapped but not dropped: a replay under way needs them
        self.writing: set[Storage] = set()  # targets of the in-place call under way
        self.leaving: deque[weakref.ref[Storage]] = deque()  # being copied out, earliest first; their blocks are due
        self.prefetches: deque[weakref.ref[Storage]] = deque()  # to be swapped in as soon as there is room
        self.evicted: dict[TensorId, weakref.ref[Storage]] = {}  # by the plan, in this iteration
        self.arrivals: list[tuple[TensorId, int, int]] = []  # prefetched tensors when they were wanted: positions
        self.paged_in_bytes = 0
        self.written_over: list[Storage] = []  # inputs whose block is an output's now; they name it until the launch
        self.guide: Guide | None = None  # set where the policy plans
        self.replay: Callable[[Storage], None]
        self._impure = False  # in this iteration something was written in place after it had been read

    # Before a call -------------------------------------------------------------------------------------------
    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring every input's bytes to the device. Raises OutOfMemory, Unrecoverable."""
        bases = list(dict.fromkeys(storage.base for storage in inputs))
        added = [base for base in bases if base not in self.protected]
        self.protected.update(added)
        try:
            # Replays first, with nothing of this call pinned: they need the room, and may swap what was made before.
            for base in bases:
                if base.status is RECOMPUTE:
                    self.replay(base)
            pinned = set(bases)
            for base in bases:
                if base.status is SWAPPING_OUT:
                    base.become(IN)  # wanted again before its bytes were given away
                elif base.status is SWAPPING_IN:
                    self._arrive(base)
            for base in bases:
                if base.status is OUT:
                    self._swap_in(base, pinned, op_name)
        finally:
            self.protected.difference_update(added)

    def _arrive(self, storage: Storage) -> None:
        """A prefetched tensor is wanted now; how late it was is known when the iteration is over."""
        self.allocator.finish_swap_in(storage)
        self.arrivals.append((storage.tensor_id, storage.copied_in, self.device.positions[COMPUTE]))

    def before_write(self, targets: Iterable[Storage]) -> None:
        """Prepare for an in-place call: values that will be computed from the old bytes are computed now."""
        # From here until it is done nothing may be dropped that would have to read the old bytes.
        self.writing = {storage.base for storage in targets}
        for ref in list(self.dropped):
            other = ref()
            if other is not None and reads(missing_calls(other) or [], self.writing):
                self.replay(other)
        if any(base.last_access >= self.tracker.iteration_start for base in self.writing):
            self._impure = True

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """Call ``number`` has changed the bytes: a host copy is stale, and lineage no longer leads to them."""
        for storage in targets:
            base = storage.base
            base.mutated_at = number
            base.call = None
            self.allocator.forget_host_copy(base)
        self.writing = set()

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf uninitialised bytes. Raises OutOfMemory."""
        storage.block = self._allocate(storage.nbytes, storage.me, set(), "allocate", high=storage.persistent)
        self.device.wait_marks(COMPUTE, storage.block.marks)
        storage.status = IN
        self.residents[storage.me] = None

    # Placement -----------------------------------------------------------------------------------------------
    def place(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage],
              given: int, saved: Sequence[int]) -> tuple[Algorithm, Block | None]:
        """Give every output a block, by donation or allocation, and choose the algorithm by the workspace at hand.

        given: the inputs that are used for the last time (bits); saved: those that this call keeps for its gradient.
        Raises OutOfMemory, with every output unplaced again.
        """
        op = signature.op
        if op.donates:
            pairs = donation.free(signature, inputs, outputs, given)
            for target, position in pairs:
                self._take_over(outputs[target], inputs[position].base)
            if pairs:
                self.tracker.donated(tuple((outputs[o].tensor_id, inputs[p].base.tensor_id) for o, p in pairs))
        try:
            for output in outputs:
                if output.block is None:
                    high = op.long_lived or output.persistent
                    block = self.arena.allocate(output.nbytes, output.me, high=high)
                    if block is None and self.leaving:
                        block = self._gather(output.nbytes, output.me, high=high)
                    if block is None:
                        block = self._allocate_short(signature, inputs, outputs, output, saved)
                    self.device.wait_marks(COMPUTE, block.marks)
                    output.block = block
                    output.status = IN  # fresh: RECOMPUTE -> IN is its first edge
                    self.residents[output.me] = None
            return self._workspace(signature, inputs, outputs)
        except OutOfMemory:
            self.launched()
            for output in outputs:
                if output.block is not None:
                    self.deallocate(output)
            raise

    def launched(self) -> None:
        """The call has been given to the device: the inputs that it writes over have lost their bytes."""
        for storage in self.written_over:
            storage.block = None
        self.written_over.clear()

    def _workspace(self, signature: Any, inputs: Sequence[Storage],
                   outputs: Sequence[Storage]) -> tuple[Algorithm, Block | None]:
        """The fastest algorithm whose workspace is free; only the least workspace is worth an eviction."""
        arena = self.arena
        for position, algorithm in enumerate(signature.algorithms):
            if not algorithm.workspace:
                return algorithm, None
            block = arena.allocate(algorithm.workspace, self)
            if (block is None and position + 1 < len(signature.algorithms)
                    and self._slide_for(algorithm.workspace, signature.algorithms[position + 1].seconds - algorithm.seconds)):
                block = arena.allocate(algorithm.workspace, self)
            if block is not None:
                self.device.wait_marks(COMPUTE, block.marks)
                return algorithm, block
        algorithm = min(signature.algorithms, key=lambda a: a.workspace)
        pinned = {storage.base for storage in (*inputs, *outputs)}
        block = self._allocate(algorithm.workspace, self, pinned, signature.op.name)
        self.device.wait_marks(COMPUTE, block.marks)
        return algorithm, block

    def _slide_for(self, nbytes: int, gain_seconds: float) -> bool:
        """Slide blocks together for a workspace, if that takes less time than the workspace saves."""
        need = aligned(nbytes)
        if self.arena.free_bytes < need:
            return False
        slide = self.arena.cheapest_slide(need, _in_flight)
        if slide is None or self.device.move_seconds(_owned_bytes(*slide)) >= gain_seconds:
            return False
        self.allocator.slide(*slide)
        return True

    def free_workspace(self, block: Block) -> None:
        """The call has been launched; whoever uses these bytes next is after it on the stream."""
        self.allocator.free(block)

    def _take_over(self, output: Storage, base: Storage) -> None:
        block = base.block
        assert block is not None
        output.block = block
        block.owner = output.me
        self.written_over.append(base)
        output.status = IN
        self.residents[output.me] = None
        if base.host is not None:
            base.become(OUT)
        else:
            base.become(RECOMPUTE)
            self.residents.pop(base.me, None)
            if base.refs > 1:  # not only the handle that was given away
                self.dropped[base.me] = None

    def _allocate_short(self, signature: Any, inputs: Sequence[Storage], outputs: Sequence[Storage],
                        output: Storage, saved: Sequence[int]) -> Block:
        """Memory is short: donate what can be made again, then evict, then back up an input and write over it."""
        index = outputs.index(output)
        planned = self.guide.upcoming() if self.guide is not None else {}
        over = [(p, inputs[p].base) for o, p in donation.candidates(signature, inputs, outputs)
                if o == index and inputs[p].base.status is IN]
        if self.policy.moves_tensors and self.arena.free_bytes < aligned(output.nbytes):
            for position, base in over:
                unsaved = position not in saved and not base.saved
                leaves = planned.get(base.tensor_id) is Action.DROP  # right after this call
                if base.host is not None or ((unsaved or leaves) and self._lineage(base) is not None):
                    return self._donate(output, base)
        pinned = {storage.base for storage in (*inputs, *outputs)}
        try:
            return self._allocate(output.nbytes, output.me, pinned, signature.op.name,
                                  high=signature.op.long_lived or output.persistent)
        except OutOfMemory:
            for _, base in over if self.policy.moves_tensors else ():
                if self._back_up(base):
                    return self._donate(output, base)
            raise

    def _donate(self, output: Storage, base: Storage) -> Block:
        base.refs += 1  # the handles that remain will ask for it again: it is not free, only written over
        self._take_over(output, base)
        base.refs -= 1
        self.tracker.donated(((output.tensor_id, base.tensor_id),))
        assert output.block is not None
        return output.block

    # Room ----------------------------------------------------------------------------------------------------
    def _allocate(self, nbytes: int, owner: object, pinned: set[Storage], op_name: str, *, high: bool = False) -> Block:
        block = self.arena.allocate(nbytes, owner, high=high)
        if block is None:
            self._make_room(nbytes, pinned, op_name)
            block = self.arena.allocate(nbytes, owner, high=high)
            assert block is not None
        return block

    def _make_room(self, nbytes: int, pinned: set[Storage], op_name: str) -> None:
        need = aligned(nbytes)
        arena = self.arena
        willing: dict[Storage, Action] = {}
        self._reclaim_bytes(need)
        if self.policy.moves_tensors and arena.free_bytes < need:
            for ref in self.residents:  # what the plan has brought in too early for this
                storage = ref()
                if storage is not None and storage.status is SWAPPING_IN:
                    self.allocator.finish_swap_in(storage)
        if self.policy.moves_tensors:
            evictable = self._evictable(pinned)
            ranking = self.policy.victims([self._residency(storage) for storage in evictable.values()], need)
            willing = {evictable[tensor_id]: action for tensor_id, action in ranking if tensor_id in evictable}
            for storage, action in list(willing.items()):
                if arena.free_bytes >= need:
                    break
                if self.evict(storage, action):
                    del willing[storage]
        if arena.free_bytes < need:
            raise self._out_of_memory(need, pinned, op_name)
        if arena.largest_free < need:
            self._make_one_piece(need, willing)

    def _make_one_piece(self, need: int, willing: dict[Storage, Action]) -> None:
        """Enough is free, but not in one piece: evict a contiguous window or slide blocks together, the cheaper."""
        device = self.device

        def seconds_to_evict(block: Block) -> float | None:
            storage = block.owner() if isinstance(block.owner, weakref.ref) else None
            if storage not in willing:
                return None
            again = device.in_seconds(block.size)
            return again if storage.host is not None else again + device.out_seconds(block.size)

        slide = self._slide(need)
        moved_bytes = _owned_bytes(*slide)
        window = self.arena.cheapest_window(need, seconds_to_evict) if willing else None
        if window is not None and window[0] < device.move_seconds(moved_bytes):
            storages = [block.owner() for block in window[1] if isinstance(block.owner, weakref.ref)]
            # Not every one may go (the host may be full); the slide remains.
            if all(storage is None or self.evict(storage, willing[storage]) for storage in storages):
                return
            slide = self._slide(need)
        self.allocator.slide(*slide)

    def _slide(self, need: int) -> tuple[Block, Block]:
        """The cheapest range to slide; only if there is no other, one with blocks that are being copied."""
        slide = self.arena.cheapest_slide(need, _in_flight) or self.arena.cheapest_slide(need)
        assert slide is not None  # enough is free, and everything can be moved
        return slide

    def _evictable(self, pinned: set[Storage]) -> dict[int, Storage]:
        storages = (ref() for ref in self.residents)
        return {s.tensor_id: s for s in storages if s is not None and s.status is IN and s not in pinned}

    def _residency(self, storage: Storage) -> Residency:
        block = storage.block
        assert block is not None
        calls = self._lineage(storage) if self.policy.weighs_recomputation else None
        seconds = None if calls is None else replay_seconds(calls)
        seen = storage.last_access >= self.tracker.iteration_start
        return Residency(storage.tensor_id, block.size, block.offset, storage.first_access if seen else None,
                         storage.last_access if seen else None, storage.persistent, storage.host is not None, seconds)

    def evict(self, storage: Storage, action: Action) -> bool:
        """Take a storage off the device; False if neither the host has room nor lineage can make it again."""
        if action is Action.DROP and self._lineage(storage) is not None:
            self._drop(storage)
        elif self._back_up(storage):
            self.allocator.leave_device(storage)
            storage.become(OUT)
        elif self._lineage(storage) is not None:  # the host is full: swapping degrades to recomputation
            self._drop(storage)
        else:
            return False
        return True

    def _lineage(self, storage: Storage) -> list[Call] | None:
        """The calls that would make a storage again if it were dropped now; None if it must not be."""
        if storage in self.protected:
            return None
        calls = missing_calls(storage)
        return None if calls is None or reads(calls, self.writing) else calls

    def _drop(self, storage: Storage) -> None:
        self.allocator.leave_device(storage)
        self.allocator.forget_host_copy(storage)
        storage.become(RECOMPUTE)
        self.residents.pop(storage.me, None)
        self.dropped[storage.me] = None

    def _back_up(self, storage: Storage) -> bool:
        """Have a valid copy on the host, making room by forgetting copies of what is on the device anyway."""
        if storage.host is not None:
            return True
        host = self.allocator.host
        if host.capacity - host.used_bytes < storage.nbytes:
            for ref in self.residents:
                other = ref()
                if other is not None and other.status is IN and other.host is not None:
                    self.allocator.forget_host_copy(other)
                    if host.capacity - host.used_bytes >= storage.nbytes:
                        break
        return self.allocator.swap_out(storage)

    def _swap_in(self, storage: Storage, pinned: set[Storage], op_name: str) -> None:
        block = self._allocate(storage.nbytes, storage.me, pinned, op_name, high=storage.persistent)
        self.allocator.swap_in(storage, block)
        self.paged_in_bytes += storage.nbytes

    def _out_of_memory(self, need: int, pinned: set[Storage], op_name: str) -> OutOfMemory:
        arena, host = self.arena, self.allocator.host
        in_use = sum(aligned(s.nbytes) for s in pinned if s.block is not None)
        resident = len(self._evictable(pinned))  # asked to leave, in vain
        text = (f"{op_name}: need {format_bytes(need)} beside {format_bytes(in_use)} in use by it; "
                f"{format_bytes(arena.free_bytes)} of {format_bytes(arena.capacity)} free, "
                f"{resident} tensors resident")
        if not self.policy.moves_tensors:
            text += f"; policy {self.policy.name!r} evicts nothing"
        elif resident or host.used_bytes + need > host.capacity:
            text += f"; host memory is full ({format_bytes(host.used_bytes)} of {format_bytes(host.capacity)})"
        return OutOfMemory(text, op=op_name, need_bytes=need + in_use, budget_bytes=arena.capacity)

    # Guided execution ----------------------------------------------------------------------------------------
    def act(self, actions: Actions, operands: Iterable[Storage]) -> None:
        """Do what the plan says after a call: evictions of its operands, then swap-ins of what was evicted before."""
        evictions, prefetches = actions
        if evictions:
            for base in dict.fromkeys(storage.base for storage in operands):
                action = evictions.get(base.tensor_id)
                if action is not None and base.status is IN and base.refs:
                    self._evict_ahead(base, action)
        for tensor_id in prefetches:
            ref = self.evicted.get(tensor_id)
            if ref is not None:
                self.prefetches.append(ref)

    def _evict_ahead(self, storage: Storage, action: Action) -> None:
        """Evict as planned: computation goes on, and the block is due when its memory is wanted."""
        self.evicted[storage.tensor_id] = storage.me
        if action is Action.DROP and self._lineage(storage) is not None:
            self._drop(storage)
        elif storage.host is not None:
            self.allocator.leave_device(storage)
            storage.become(OUT)
        elif self.allocator.start_swap_out(storage):
            self.leaving.append(storage.me)

    def prefetch(self) -> None:
        """Start the swap-ins that are due, in order, as far as there is room; the others are postponed."""
        queue = self.prefetches
        while queue:
            storage = queue[0]()
            if storage is None or storage.status is not OUT:
                if storage is not None and storage.status is SWAPPING_OUT:
                    storage.become(IN)
                queue.popleft()
                continue
            # At the persistent end: a block that is being filled cannot be moved, and would split the space.
            block = self.arena.allocate(storage.nbytes, storage.me, high=True)
            if block is None:
                block = self._gather(storage.nbytes, storage.me, high=True)
            if block is None:
                return
            self.allocator.start_swap_in(storage, block)
            queue.popleft()

    def _gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """A block, without evicting anything: by sliding if enough is free in total, which costs little; otherwise by
        giving away what is being copied out, earliest first, whose next user then waits for the copy."""
        need = aligned(nbytes)
        while True:
            if self.arena.free_bytes >= need:
                slide = self.arena.cheapest_slide(need, _in_flight)
                if slide is not None:
                    self.allocator.slide(*slide)
            block = self.arena.allocate(nbytes, owner, high=high)
            if block is not None or not self._reclaim_one():
                return block

    def _reclaim_bytes(self, need: int) -> None:
        while self.arena.free_bytes < need and self._reclaim_one():
            pass

    def _reclaim_one(self) -> bool:
        while self.leaving:
            storage = self.leaving.popleft()()
            if storage is not None and storage.status is SWAPPING_OUT:
                self.allocator.finish_swap_out(storage)
                return True
        return False

    def lateness(self) -> dict[TensorId, float]:
        """Seconds that computation waited for each prefetched tensor of this iteration."""
        return {tensor_id: self.device.lateness(copied, computed) for tensor_id, copied, computed in self.arrivals}

    # Ends ----------------------------------------------------------------------------------------------------
    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Nobody can ask for these bytes any more: free them on the device and on the host."""
        if (self._impure and self.dropped and not record_gone and storage.call is not None
                and missing_calls(storage) is None):
            return  # something dropped may still have to start from it; it goes with its record
        if storage.block is not None:
            self.allocator.leave_device(storage)
        if storage.host is not None:
            self.allocator.forget_host_copy(storage)
        if storage.status is not RECOMPUTE:
            storage.become(RECOMPUTE)
            self.residents.pop(storage.me, None)
        elif self.dropped:
            self.dropped.pop(storage.me, None)
        self.tracker.freed(storage)

    def regenerated(self, storage: Storage) -> None:
        """A dropped storage has its bytes again."""
        self.dropped.pop(storage.me, None)

    def end_iteration(self, *, failed: bool = False) -> None:
        """Make survivors real and cut their lineage, so that nothing pins what this iteration read.

        After a failure nothing is computed any more: what was dropped keeps its lineage until someone asks for it.
        """
        dropped = [s for s in (ref() for ref in self.dropped) if s is not None]
        # What has bytes becomes a leaf first: to make room for the others it may be swapped, but no longer dropped.
        for storage in self.live():
            _cut(storage)
        for storage in [] if failed else dropped:
            if storage.status is RECOMPUTE:
                if missing_calls(storage) is None:
                    raise Unrecoverable(f"tensor {storage.tensor_id} was dropped and cannot be computed again")
                self.replay(storage)
            _cut(storage)
        live = dict.fromkeys([*self.live(), *dropped])
        owners = {s.grad.storage.base: s for s in live if s.persistent and s.grad is not None}
        for storage in live:
            storage.access_count = 0
            if storage in owners:
                storage.tensor_id = GRADIENT_ID - owners[storage].tensor_id
            elif storage.tensor_id >= 0:
                storage.tensor_id += SURVIVOR_STEP
        self._impure = False
        self.prefetches.clear()
        self.evicted.clear()
        self.arrivals.clear()
        self.paged_in_bytes = 0

    def live(self) -> list[Storage]:
        """The storages that have bytes somewhere."""
        return [s for s in (ref() for ref in self.residents) if s is not None]

    def check(self) -> None:
        """Raises AssertionError unless blocks, host extents and statuses agree."""
        self.allocator.check()
        live = self.live()
        owned = {block.owner for block in self.arena.blocks() if block.owner is not None}
        assert owned == {s.me for s in live if s.block is not None}, "blocks and storages disagree"
        for storage in live:
            assert (storage.block is not None) == (storage.status is not OUT), f"{storage} and its block disagree"
            assert storage.status is not OUT or storage.host is not None, f"{storage} has no bytes"
            assert storage.refs >= storage.saved >= 0, f"{storage} is saved more often than used"
        for ref in self.dropped:
            gone = ref()
            assert gone is None or gone.status is RECOMPUTE, f"{gone} is listed as dropped"
        assert self.allocator.host.used_bytes == sum(s.nbytes for s in live if s.host is not None), "host leak"


def _in_flight(block: Block) -> bool:
    storage = block.owner() if isinstance(block.owner, weakref.ref) else None
    return storage is not None and storage.status is not IN


def _cut(storage: Storage) -> None:
    """Make a storage with bytes a leaf."""
    if storage.call is not None:
        storage.call = None
        storage.requires_grad = False  # its graph is gone: a later backward() must not end here in silence


def _range(first: Block, last: Block) -> Iterable[Block]:
    block: Block | None = first
    while block is not None:
        yield block
        block = None if block is last else block.next


def _owned_bytes(first: Block, last: Block) -> int:
    return sum(block.size for block in _range(first, last) if block.owner is not None)
