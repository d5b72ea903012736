"""Coming and going by copies: swap-ins on demand and ahead of time, and evictions as a plan wants them.

What was dropped comes back by a replay, which is not done here (``replay.py``).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.memory.bytes.block import Block
from minidl.memory.evicting import Evicting
from minidl.memory.guided.relocate import clear
from minidl.memory.guided.sequence import Actions, Returns
from minidl.memory.room import Room
from minidl.memory.state import State
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.plan.plan import AccessKey, Action, Eviction, Move


class Residency:
    """Brings swapped tensors back, and carries out what the plan says after each call.

    It notes how each evicted tensor came back in this iteration, by the access after which it had left: positions on
    the copy-in and the compute stream when a prefetched one was wanted; seconds of copying, or of replaying.
    """

    def __init__(self, state: State, room: Room, evicting: Evicting) -> None:
        self.state = state
        self.room = room
        self.evicting = evicting
        self.prefetches: deque[weakref.ref[Storage]] = deque()  # to be swapped in as soon as there is room
        self._evicted: dict[TensorId, weakref.ref[Storage]] = {}  # by the plan, in this iteration
        self._replays: list[TensorId] = []  # to be computed again before the next call
        self._spent: tuple[Eviction, ...] = ()  # goes when they have read it
        self._moves: tuple[Move, ...] = ()  # to other addresses, before the next call
        self._arrivals: list[tuple[AccessKey, int, int]] = []
        self._paged_in: dict[AccessKey, float] = {}
        self._recomputed: dict[AccessKey, Sequence[float]] = {}
        self._paged_in_bytes = 0

    # Coming back ---------------------------------------------------------------------------------------------
    def bring_in(self, bases: Sequence[Storage], op_name: str) -> None:
        """Have the bytes of storages on the device that are there, on the host, or on their way. Raises OutOfMemory."""
        pinned = set(bases)
        for base in bases:
            if base.status is SWAPPING_OUT:
                _stay(base)  # wanted again before its bytes were given away
            elif base.status is SWAPPING_IN:
                self._arrive(base)
        for base in bases:
            if base.status is OUT:
                self._swap_in(base, pinned, op_name)
        if self.state.access_list is not None:
            self.state.access_list.touch(bases)

    def _swap_in(self, storage: Storage, pinned: set[Storage], op_name: str) -> None:
        """Bring a storage back on demand, while computation waits."""
        state = self.state
        with state.at_work:
            block = self._planned(storage)
            if block is None:
                block = self.room.allocate(storage.nbytes, storage.me, pinned, op_name, high=storage.persistent)
            storage.residency += 1
            state.allocator.swap_in(storage, block)
        self._paged_in_bytes += storage.nbytes
        if state.guide is not None:
            self._paged_in[storage.tensor_id, storage.access_count] = state.device.in_seconds(storage.nbytes)

    def _planned(self, storage: Storage) -> Block | None:
        """Where the plan wants a storage that comes back, if it says so and these bytes can be had."""
        guide = self.state.guide
        address = guide.address(storage) if guide is not None else None
        return self._at(storage, address) if address is not None else None

    def _at(self, storage: Storage, address: int) -> Block | None:
        """The bytes there, if what has them leaves anyway or can make way."""
        return self.room.claim(storage, address) or clear(self.state, storage, address)

    def _arrive(self, storage: Storage) -> None:
        """A prefetched tensor is wanted now; how late it was is known when the iteration is over."""
        self.state.allocator.finish_swap_in(storage)
        key = storage.tensor_id, storage.access_count
        self._arrivals.append((key, storage.copied_in, self.state.device.positions[COMPUTE]))

    # As planned ----------------------------------------------------------------------------------------------
    def act(self, actions: Actions, operands: Iterable[Storage]) -> None:
        """Do what the plan says after a call: evictions of its operands, releases of what others brought back, a wait
        for all copies so far, then swap-ins of what was evicted before."""
        if evictions := actions.evictions:
            at_work = self.state.at_work
            at_work.on = True  # kept flat, as in a guided iteration this comes after every other call
            try:
                for base in dict.fromkeys([storage.base for storage in operands]):
                    action = evictions.get(base.tensor_id)
                    if action is not None and base.refs:
                        self._evicted[base.tensor_id] = base.me  # also if the call has written over it
                        if base.status is IN:
                            self._evict_ahead(base, action)
            finally:
                at_work.on = False
        if actions.releases:
            self.release(actions.releases)
        if actions.waits:
            self._wait_for_copies()
        for tensor_id in actions.prefetches:
            ref = self._evicted.get(tensor_id)
            if ref is not None:
                self.prefetches.append(ref)
        for tensor_id in actions.replays:  # not now: the program is still to free what this call has read
            if (storage := self.dropped(tensor_id)) is not None:
                self._replays.append(tensor_id)
                self.prefetches.append(storage.me)
        self._spent += actions.spent
        if actions.moves:  # not now, for the same reason
            self._moves += actions.moves
            gone = {tensor_id for tensor_id, _ in actions.moves}
            self.prefetches.extend(ref for ref in self.state.residents
                                   if (s := ref()) and s.status is IN and s.tensor_id in gone)

    def release(self, evictions: Sequence[Eviction]) -> None:
        """Let go of these if they are here, or on their way: none of them was an operand."""
        here = {s.tensor_id: s for ref in self.state.residents
                if (s := ref()) is not None and s.status in (IN, SWAPPING_IN) and s.refs
                and s not in self.state.protected}
        gone = {tensor_id for tensor_id, _ in evictions}
        if self.prefetches:  # what has not found room to come back need not any more
            self.prefetches = deque(ref for ref in self.prefetches if (s := ref()) and s.tensor_id not in gone)
        with self.state.at_work:
            for tensor_id, action in evictions:
                if (storage := here.get(tensor_id)) is not None:
                    if storage.status is SWAPPING_IN:  # nobody has read it
                        self.state.allocator.finish_swap_in(storage)
                    self._evict_ahead(storage, action)

    def take_replays(self) -> tuple[Sequence[Storage], Mapping[TensorId, Action]]:
        """What is to be computed again before the next call, and is still not there; and what goes when that was read.
        """
        due, spent = self._replays, self._spent
        self._replays, self._spent = [], ()
        return [storage for tensor_id in due if (storage := self.dropped(tensor_id)) is not None], dict(spent)

    def dropped(self, tensor_id: TensorId) -> Storage | None:
        """What the plan has dropped under this id in this iteration, if it is wanted and still not there."""
        ref = self._evicted.get(tensor_id)
        storage = ref() if ref is not None else None
        return storage if storage is not None and storage.status is RECOMPUTE and storage.refs else None

    def _wait_for_copies(self) -> None:
        """What comes next on the compute stream starts when all copies so far have ended; what they took is free."""
        device = self.state.device
        device.wait(COMPUTE, COPY_OUT, device.positions[COPY_OUT])
        device.wait(COMPUTE, COPY_IN, device.positions[COPY_IN])
        with self.state.at_work:
            self.room.reclaim_all()

    def _evict_ahead(self, storage: Storage, action: Action) -> None:
        """Evict as planned: computation goes on, and the block is due when its memory is wanted."""
        state = self.state
        self._evicted[storage.tensor_id] = storage.me
        if action is Action.DROP and self.evicting.lineage_of(storage) is not None:
            self.evicting.drop(storage)
        elif storage.host is not None:
            state.allocator.leave_device(storage)
            storage.become(OUT)
        elif state.allocator.start_swap_out(storage):
            state.leaving.append(storage.me)

    def prefetch(self) -> None:
        """Start the swap-ins that are due, in order, as far as there is room; the others are postponed."""
        state, queue = self.state, self.prefetches
        if self._moves:
            self._move()
        while queue:
            storage = queue[0]()
            if storage is not None and storage.status is SWAPPING_OUT and self._takes_its_place(storage):
                queue.popleft()
                continue
            if storage is None or storage.status is not OUT:
                if storage is not None and storage.status is SWAPPING_OUT:
                    _stay(storage)
                    if state.access_list is not None:
                        state.access_list.touch((storage,))
                queue.popleft()
                continue
            state.at_work.on = True  # kept flat, as above
            try:
                block = self._planned(storage)
                # At the persistent end: a block that is being filled cannot be moved, and would split the space.
                if block is None:
                    block = state.arena.allocate(storage.nbytes, storage.me, high=True)
                if block is None:
                    block = self.room.gather(storage.nbytes, storage.me, high=True)
                if block is not None:
                    storage.residency += 1
                    state.allocator.start_swap_in(storage, block)
            finally:
                state.at_work.on = False
            if block is None:
                return
            queue.popleft()

    def _move(self) -> None:
        """Move what the plan has another address for from here on, unless it is not here, or something lies there that
        stays. One may go where another one leaves."""
        moves, self._moves = dict(self._moves), ()
        waiting = {s: moves[s.tensor_id] for ref in self.prefetches
                   if (s := ref()) and s.status is IN and s.tensor_id in moves}
        tried = len(waiting) + 1
        with self.state.at_work:
            while waiting and len(waiting) < tried:
                tried = len(waiting)
                for storage, offset in list(waiting.items()):
                    block = self._at(storage, offset)
                    if block is not None:
                        self.state.allocator.move(storage, block)
                        del waiting[storage]

    def _takes_its_place(self, storage: Storage) -> bool:
        """Whether what is still being copied out has begun to come back to another address, where its plan wants it:
        that of the bytes that it still has is for others by then."""
        state = self.state
        address = state.guide.address(storage) if state.guide is not None else None
        assert storage.block is not None
        if address is None or address == storage.block.offset:
            return False
        with state.at_work:
            block = self.room.claim(storage, address)  # which may give away its own bytes
            if block is None:
                return False
            if storage.status is SWAPPING_OUT:
                state.allocator.finish_swap_out(storage)
            storage.residency += 1
            state.allocator.start_swap_in(storage, block)
        return True

    # What came back, and how ---------------------------------------------------------------------------------
    def replayed(self, target: Storage, durations: Sequence[float]) -> None:
        """A dropped storage was wanted, and has been computed again.

        durations: of the calls of its replay (seconds); on a clock that is not modelled it fills as they finish.
        """
        if self.state.guide is not None:
            self._recomputed[target.tensor_id, target.access_count] = durations

    def returns(self) -> Returns:
        """How what had left the device in this iteration came back."""
        lateness = self.state.device.lateness
        late = {key: lateness(copied, computed) for key, copied, computed in self._arrivals}
        recomputed = {key: sum(durations) for key, durations in self._recomputed.items()}
        return Returns(late, dict(self._paged_in), recomputed, self._paged_in_bytes)

    def away(self) -> list[Storage]:
        """What the plan has taken off the device until some time in the next iteration."""
        evicted = (ref() for ref in self._evicted.values())
        return [s for s in evicted if s is not None and s.persistent and s.status in (OUT, SWAPPING_OUT)]

    def end_iteration(self) -> None:
        """Nothing of a plan is left to be done but to bring back what is away, and the notes begin anew."""
        self.prefetches.clear()
        self.take_replays()
        self._moves = ()
        self._evicted = {storage.tensor_id: storage.me for storage in self.away()}
        self._arrivals.clear()
        self._paged_in.clear()
        self._recomputed.clear()
        self._paged_in_bytes = 0


def _stay(storage: Storage) -> None:
    """What was being copied out is wanted, and still has its bytes: it is as if it had come back."""
    storage.become(IN)
    storage.residency += 1
