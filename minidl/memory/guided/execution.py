"""Guided execution: carries out a plan's decisions at the hooks of on-demand memory.

Evictions and in-triggers come after calls; swap-ins, replays and moves that are due start before the next call; bytes
get their planned addresses; survivors are packed between iterations. The ``PlanFollower`` says which sequence of calls
is followed, and under which plan. A decision that cannot be carried out costs time, never correctness: on-demand memory
does the rest.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.errors import OutOfMemory, Unrecoverable
from minidl.memory.bytes.block import Block
from minidl.memory.guided.follower import PlanFollower
from minidl.memory.guided.leaving import Leaving
from minidl.memory.guided.packing import pack_survivors
from minidl.memory.guided.relocate import relocate
from minidl.memory.guided.returning import Returning
from minidl.memory.guided.sequence import Actions
from minidl.memory.hooks import Hooks
from minidl.memory.manager import Manager
from minidl.memory.room import in_flight
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.op import Signature
from minidl.plan.costs import Limits
from minidl.plan.plan import Action, Eviction, Move
from minidl.plan.trace import Trace
from minidl.planning.allowance import Allowance


class GuidedExecution(Hooks):
    """Brings tensors back ahead of time, and evicts, places and moves them as the plan says."""

    def __init__(self, memory: Manager, follower: PlanFollower) -> None:
        self.state = memory.state
        self.evicting = memory.evicting
        self.replaying = memory.replaying
        self.follower = follower
        self.leaving = Leaving(memory.state)
        self.returning = Returning(memory.state, memory.residency)
        self.due: deque[weakref.ref[Storage]] = deque()  # to be swapped in, moved or replayed, as soon as there is room
        self._evicted: dict[TensorId, weakref.ref[Storage]] = {}  # by the plan, in this iteration
        self._replays: list[TensorId] = []  # to be computed again before the next call
        self._spent: tuple[Eviction, ...] = ()  # how tensors leave when these replays have read them
        self._last_reads: Mapping[TensorId, Action] = {}  # the same, while the replays run
        self._moves: tuple[Move, ...] = ()  # to other addresses, before the next call
        self._began = self._stalled_before = 0.0  # this iteration: seconds on the device's clock
        self._settling, self._addresses = False, follower.offsets

    # Before a call -------------------------------------------------------------------------------------------
    def before_call(self) -> None:
        """Start moves and swap-ins that are due, then replays. A replay that is not possible now is left for the time
        when its target is wanted."""
        if self._moves:
            self._move()
        self._prefetch()
        targets = [storage for tensor_id in self._replays if (storage := self._dropped(tensor_id)) is not None]
        self._last_reads = dict(self._spent) if targets else {}
        self._replays, self._spent = [], ()
        if targets:
            try:
                with suppress(OutOfMemory, Unrecoverable):
                    self.replaying.replay(*targets, alone=True)
            finally:
                self._last_reads = {}

    def _prefetch(self) -> None:
        """Start the swap-ins that are due, in order, as far as there is room; the others are postponed."""
        state, queue = self.state, self.due
        while queue:
            storage = queue[0]()
            if storage is not None and storage.status is SWAPPING_OUT and self._takes_its_place(storage):
                queue.popleft()
                continue
            if storage is None or storage.status is not OUT:
                if storage is not None and storage.status is SWAPPING_OUT:
                    _stay(storage)
                    state.access_list.touch((storage,))
                queue.popleft()
                continue
            state.arena_busy.on = True  # kept flat, as this comes before every other call
            try:
                block = self.place(storage)
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
        """Move tensors to their next planned addresses, unless they are not here, or another tensor stays there. A
        tensor may go where another one leaves."""
        moves, self._moves = dict(self._moves), ()
        waiting = {s: moves[s.tensor_id] for ref in self.due
                   if (s := ref()) and s.status is IN and s.tensor_id in moves}
        tried = len(waiting) + 1
        with self.state.arena_busy:
            while waiting and len(waiting) < tried:
                tried = len(waiting)
                for storage, offset in list(waiting.items()):
                    block = self._at(storage, offset)
                    if block is not None:
                        self.state.allocator.move(storage, block)
                        del waiting[storage]

    def _takes_its_place(self, storage: Storage) -> bool:
        """Whether a storage that is still being copied out has begun to come back to another planned address: from now
        on the plan has other tensors at its present one."""
        state, address = self.state, self.follower.address(storage)
        assert storage.block is not None
        if address is None or address == storage.block.offset:
            return False
        with state.arena_busy:
            block = self.leaving.claim(storage, address)  # which may give away its own bytes
            if block is None:
                return False
            if storage.status is SWAPPING_OUT:
                state.allocator.finish_swap_out(storage)
            storage.residency += 1
            state.allocator.start_swap_in(storage, block)
        return True

    # An address for bytes ------------------------------------------------------------------------------------
    @property
    def places(self) -> bool:  # type: ignore[override] # here it follows from the plan
        """Whether the plan has addresses."""
        return bool(self.follower.offsets)

    def place(self, storage: Storage, donate: Callable[[int], Block | None] | None = None,
              stays: Callable[[], Collection[Block]] = tuple) -> Block | None:
        """The block at the planned address of a storage: free, donated, or cleared of a tensor that is misplaced."""
        address = self.follower.address(storage)
        if address is None:
            return None
        return (self.leaving.claim(storage, address) or (donate(address) if donate is not None else None)
                or relocate(self.state, storage, address, stays()))

    def _at(self, storage: Storage, address: int) -> Block | None:
        return self.leaving.claim(storage, address) or relocate(self.state, storage, address)

    def gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """A block from those that are being copied out."""
        return self.leaving.gather(nbytes, owner, high=high) if self.leaving else None

    def reclaim(self, need: int, *, everything: bool = False) -> None:
        """Give away blocks that are being copied out; if that is not enough, let swap-ins that the plan began too early
        be evicted."""
        state, arena = self.state, self.state.arena
        if everything:
            return self.leaving.give_all()
        while arena.free_bytes < need and self.leaving.give_one():
            pass
        if arena.free_bytes < need:
            for storage in state.live():
                if storage.status is SWAPPING_IN:
                    state.allocator.finish_swap_in(storage)
                    state.access_list.touch((storage,))

    # After a call --------------------------------------------------------------------------------------------
    def after_call(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...],
                   operands: Sequence[Storage]) -> None:
        """Compare a call with the sequence that is followed, and do what the plan says after it."""
        actions = self.follower.follow(signature, read, made)
        if actions is not None and operands:  # none after a value was read
            self.act(actions, operands)

    def act(self, actions: Actions, operands: Iterable[Storage]) -> None:
        """Evict operands, release tensors that others brought back, wait for all copies so far if the plan says so;
        then note swap-ins, replays and moves for the next call."""
        if evictions := actions.evictions:
            busy = self.state.arena_busy
            busy.on = True  # kept flat, as in a guided iteration this comes after every other call
            try:
                for base in dict.fromkeys([storage.base for storage in operands]):
                    action = evictions.get(base.tensor_id)
                    if action is not None and base.refs:
                        self._evicted[base.tensor_id] = base.me  # also if the call has written over it
                        if base.status is IN:
                            self._evict(base, action)
            finally:
                busy.on = False
        if actions.releases:
            self._release(actions.releases)
        if actions.waits:
            self._wait_for_copies()
        for tensor_id in actions.prefetches:
            ref = self._evicted.get(tensor_id)
            if ref is not None:
                self.due.append(ref)
        for tensor_id in actions.replays:  # not now: the program is still to free what this call has read
            if (storage := self._dropped(tensor_id)) is not None:
                self._replays.append(tensor_id)
                self.due.append(storage.me)
        self._spent += actions.spent
        if actions.moves:  # not now, for the same reason
            self._moves += actions.moves
            gone = {tensor_id for tensor_id, _ in actions.moves}
            self.due.extend(ref for ref in self.state.residents
                            if (s := ref()) and s.status is IN and s.tensor_id in gone)

    def _evict(self, storage: Storage, action: Action) -> None:
        """Evict while computation goes on; the block is due when its memory is wanted."""
        state = self.state
        self._evicted[storage.tensor_id] = storage.me
        if action is Action.DROP and self.evicting.lineage_of(storage) is not None:
            self.evicting.drop(storage)
        elif storage.host is not None:
            state.allocator.leave_device(storage)
            storage.become(OUT)
        else:
            self.leaving.start(storage)

    def _release(self, evictions: Sequence[Eviction]) -> None:
        """Evict these if they are here, or on their way: none of them was an operand."""
        here = {s.tensor_id: s for ref in self.state.residents
                if (s := ref()) is not None and s.status in (IN, SWAPPING_IN) and s.refs
                and s not in self.state.protected}
        gone = {tensor_id for tensor_id, _ in evictions}
        if self.due:  # a tensor that has found no room to come back need not come any more
            self.due = deque(ref for ref in self.due if (s := ref()) and s.tensor_id not in gone)
        with self.state.arena_busy:
            for tensor_id, action in evictions:
                if (storage := here.get(tensor_id)) is not None:
                    if storage.status is SWAPPING_IN:  # no call has read it
                        self.state.allocator.finish_swap_in(storage)
                    self._evict(storage, action)

    def release(self, storage: Storage) -> None:
        """Evict what a replay has read for the last time, if the plan says so."""
        action = self._last_reads.get(storage.tensor_id)
        if action is not None:
            self._release([Eviction(storage.tensor_id, action)])

    def _wait_for_copies(self) -> None:
        """The next call on the compute stream starts when all copies so far have ended; their blocks are free."""
        device = self.state.device
        device.wait(COMPUTE, COPY_OUT, device.positions[COPY_OUT])
        device.wait(COMPUTE, COPY_IN, device.positions[COPY_IN])
        with self.state.arena_busy:
            self.leaving.give_all()

    def _dropped(self, tensor_id: TensorId) -> Storage | None:
        """The storage that the plan has dropped under this id in this iteration, if it is wanted and still dropped."""
        ref = self._evicted.get(tensor_id)
        storage = ref() if ref is not None else None
        return storage if storage is not None and storage.status is RECOMPUTE and storage.refs else None

    def arrive(self, storage: Storage) -> None:
        """Let the compute stream wait for a swap-in; stop a swap-out whose bytes are still here."""
        if storage.status is SWAPPING_OUT:
            _stay(storage)
        else:
            self.state.allocator.finish_swap_in(storage)
            self.returning.arrived(storage)

    def returned(self, storage: Storage, replay: Sequence[float] | None = None) -> None:
        """Note how a tensor came back on demand."""
        self.returning.returned(storage, replay)

    # The end of an iteration ---------------------------------------------------------------------------------
    def begin_iteration(self) -> None:
        """Do not count the time since the last iteration (the program waited for data, say) as this one's."""
        device = self.state.device
        if device.wall_clock:
            self._began = device.now()

    def end_iteration(self, trace: Callable[[], Trace], *, failed: bool) -> None:
        """Let the policy see how this iteration went, and correct its plan."""
        device, follower = self.state.device, self.follower
        self._settling, self._addresses = follower.settling, follower.offsets
        if follower.observes:
            device.settle()
        now, stalled = device.now(), device.stall_seconds()
        if failed or self.state.tracker.too_long:
            follower.abandon_iteration()
        else:
            follower.end_iteration(trace, seconds=now - self._began, stall_seconds=stalled - self._stalled_before,
                                   returns=self.returning.summary(), link=device.link_seconds_per_byte())
        self._began, self._stalled_before = device.now(), stalled  # without the time of planning

    def pack(self, survivors: Collection[Storage], fresh: Collection[Storage], *, failed: bool) -> None:
        """Put survivors where the plan expects them: wherever they lie, they would split the space that it counts on.
        Nothing of the plan is left to be done but to bring back tensors that are away."""
        if not failed:
            self._pack(survivors, fresh)
        self.due.clear()
        self._replays, self._spent, self._moves = [], (), ()
        self._evicted = {storage.tensor_id: storage.me for storage in self._away()}
        self.returning.clear()

    def _pack(self, survivors: Collection[Storage], fresh: Collection[Storage]) -> None:
        state, follower = self.state, self.follower
        known = follower.active.trace.tensors if follower.active is not None else {}
        with state.arena_busy:
            if follower.offsets and state.arena.compacts:
                pack_survivors(state, survivors, self._away(),
                               passing=[storage for storage in fresh if storage.tensor_id not in known])
            elif follower.plans_ahead:  # the persistent end will do
                slide = state.arena.cheapest_slide(state.arena.free_bytes, in_flight)
                if slide is not None:
                    state.allocator.slide(*slide)

    def _away(self) -> list[Storage]:
        """The tensors that the plan has taken off the device until some time in the next iteration."""
        evicted = (ref() for ref in self._evicted.values())
        return [s for s in evicted if s is not None and s.persistent and s.status in (OUT, SWAPPING_OUT)]

    def start(self) -> None:
        """Begin to count the next iteration's time after moves that lead from one plan to another; look closely at the
        device if it will be measured."""
        if self._settling or self.follower.offsets is not self._addresses:
            self._began = self.state.device.now()
        self.state.device.measure(self.follower.measuring)

    # Questions -----------------------------------------------------------------------------------------------
    @property
    def acts(self) -> bool:  # type: ignore[override] # here it follows from the plan
        """Whether the plan that is followed wants anything done."""
        return self.follower.plans_ahead

    def algorithm(self, signature: Signature) -> str | None:
        """The algorithm that the plan has for the next call; blocks whose copies have ended are free for it."""
        if self.leaving:
            self.leaving.give_landed()
        return self.follower.algorithm(signature)

    def drops_next(self, storage: Storage) -> bool:
        """Whether the plan drops a storage right after the next call."""
        return self.follower.upcoming().get(storage.tensor_id) is Action.DROP

    def recorded(self) -> tuple[Trace | None, int] | None:
        """The measured iteration that is followed, if any, and the number of the next call."""
        active = self.follower.active
        return (active.trace if active is not None else None), self.follower.position

    def relent(self) -> bool:
        """Give up the plan: it is not followed any more."""
        return self.follower.abandon_plan()

    def signatures(self) -> Iterable[Signature]:
        """The signatures of all known sequences."""
        return self.follower.signatures()


def attach(memory: Manager) -> PlanFollower:
    """Attach guided execution to on-demand memory, under a policy that plans; returns the follower of its plans."""
    state = memory.state
    device = state.device
    limits = Limits(state.arena.capacity, state.allocator.host.capacity)
    follower = PlanFollower(state.policy, state.link_costs, limits, state.switches,
                            peak_flops=device.profile.peak_flops, measured_iterations=device.measured_iterations,
                            allowance=Allowance(device.host_now, limited=device.wall_clock))
    memory.attach(GuidedExecution(memory, follower))
    return follower


def _stay(storage: Storage) -> None:
    """A tensor that was being copied out is wanted, and still has its bytes: it is as if it had come back."""
    storage.become(IN)
    storage.residency += 1
