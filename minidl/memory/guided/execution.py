"""Guided execution: carries out a plan's decisions at the hooks of on-demand memory.

Evictions happen after calls; swap-ins, replays and moves that are due start before the next call; tensors get their
planned addresses; survivors are packed between iterations. The ``PlanFollower`` says which plan is followed. If a
decision cannot be carried out, on-demand memory does what is needed: that costs time, never correctness.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.memory.bytes.block import Block
from minidl.memory.guided.ahead import Ahead, stay
from minidl.memory.guided.follower import PlanFollower
from minidl.memory.guided.leaving import Leaving
from minidl.memory.guided.packing import pack_survivors
from minidl.memory.guided.returning import Returning
from minidl.memory.guided.sequence import Actions
from minidl.memory.hooks import Hooks
from minidl.memory.manager import Manager
from minidl.memory.moving import slide_blocks
from minidl.memory.one_hole import in_flight
from minidl.memory.storage import IN, OUT, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.op import Signature
from minidl.plan.costs import Limits
from minidl.plan.plan import Action, Eviction
from minidl.plan.trace import Trace
from minidl.planning.allowance import Allowance
from minidl.policies import beside
from minidl.ranks.consensus import ALONE, Alone


class GuidedExecution(Hooks):
    """The hooks of a followed plan: evicts, prefetches, replays, places and moves tensors as the plan says."""

    follows = True

    def __init__(self, memory: Manager, follower: PlanFollower) -> None:
        self.state = memory.state
        self.evicting = memory.evicting
        self.follower = follower
        self.leaving = Leaving(memory.state)
        self.returning = Returning(memory.state, memory.replaying)
        self.ahead = Ahead(memory.state, memory.replaying, follower, self.leaving, memory.leftovers)
        self.due = self.ahead.due
        self._began = self._stalled_before = 0.0  # device clock and stall seconds when this iteration began
        self._settling, self._addresses = False, follower.offsets

    def before_call(self) -> None:
        """Start the swap-ins, replays and moves that the plan has before the next call."""
        self.ahead.start()

    # An address for bytes ------------------------------------------------------------------------------------
    @property
    def places(self) -> bool:  # type: ignore[override] # here it follows from the plan
        """True if the plan that is followed has addresses for tensors."""
        return bool(self.follower.offsets)

    def place(self, storage: Storage, donor: Callable[[int], Block | None] | None = None,
              stays: Callable[[], Collection[Block]] = tuple,
              operands: Callable[[], Collection[Storage]] | None = None) -> Block | None:
        """Allocate the block at a storage's planned address; None if it has no address, or it stays occupied.
        donor: called with the address; returns the block there if an operand of the current call can donate it.
        stays: returns the blocks that must not be moved. operands: returns the storages that must not be dropped; None:
        nothing is dropped."""
        return self.ahead.place_at(storage, self.follower.address(storage), donor, stays, operands)

    def gather(self, nbytes: int, owner: object, *, high: bool) -> Block | None:
        """Allocate a block as ``Leaving.gather`` does: slide blocks together, or free those that are being copied out.
        None if that is not enough, or none is being copied out. high: near the top of the arena."""
        return self.leaving.gather(nbytes, owner, high=high) if self.leaving else None

    def reclaim(self, need: int, *, everything: bool = False) -> None:
        """Free blocks that are being copied out, until ``need`` bytes are free, or all of them (``everything``).
        If these are not enough, end the swap-ins that are running, so that their tensors can be evicted."""
        state, arena = self.state, self.state.arena
        if everything:
            return self.leaving.free_all()
        while arena.free_bytes < need and self.leaving.free_one():
            pass
        if arena.free_bytes < need:
            for storage in state.live():
                if storage.status is SWAPPING_IN:
                    state.allocator.finish_swap_in(storage)
                    state.access_list.touch((storage,))

    # After a call --------------------------------------------------------------------------------------------
    def after_call(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...],
                   operands: Sequence[Storage]) -> None:
        """Compare a call with the sequence that is followed, and carry out what the plan has after this call."""
        actions = self.follower.follow(signature, read, made)
        if actions is not None and operands:  # none after a value was read
            self.act(actions, operands)

    def act(self, actions: Actions, operands: Iterable[Storage]) -> None:
        """Carry out a plan's actions after one call.
        Operands are evicted, and other tensors too (``releases``); computation waits for copies if the plan says so.
        Swap-ins, replays and moves are noted for ``before_call``."""
        if evictions := actions.evictions:
            busy = self.state.arena_busy
            busy.on = True  # kept flat, as in a guided iteration this comes after every other call
            try:
                for base in dict.fromkeys([storage.base for storage in operands]):
                    action = evictions.get(base.tensor_id)
                    if action is not None and base.refs:
                        self.ahead.evicted[base.tensor_id] = base.me  # also if the call has written over it
                        if base.status is IN:
                            self._evict(base, action)
            finally:
                busy.on = False
        if actions.releases:
            self._release(actions.releases)
        if actions.waits:
            self._wait_for_copies()
        for tensor_id in actions.prefetches:
            ref = self.ahead.evicted.get(tensor_id)
            if ref is not None:
                self.ahead.due.append(ref)
        for tensor_id in actions.replays:  # not now: the program has not yet freed the inputs of this call
            if (storage := self.ahead.dropped(tensor_id)) is not None:
                self.ahead.replays.append(tensor_id)
                self.ahead.due.append(storage.me)
        self.ahead.spent += actions.spent
        if actions.moves:  # not now, for the same reason
            self.ahead.moves += actions.moves
            gone = {tensor_id for tensor_id, _ in actions.moves}
            self.ahead.due.extend(ref for ref in self.state.live_refs
                            if (s := ref()) and s.status is IN and s.tensor_id in gone)

    def _evict(self, storage: Storage, action: Action) -> None:
        """Evict a storage while computation goes on: a swap-out is queued, and its block stays in use meanwhile."""
        state = self.state
        self.ahead.evicted[storage.tensor_id] = storage.me
        if action is Action.DROP and self.evicting.lineage_of(storage) is not None:
            self.evicting.drop(storage)
        elif storage.host is not None:
            state.allocator.leave_device(storage)
            storage.set_status(OUT)
        else:
            self.leaving.start(storage)

    def _release(self, evictions: Sequence[Eviction]) -> None:
        """Evict tensors that are no operands of the last call, if they are on the device or being swapped in."""
        here = {s.tensor_id: s for ref in self.state.live_refs
                if (s := ref()) is not None and s.status in (IN, SWAPPING_IN) and s.refs
                and s not in self.state.protected}
        gone = {tensor_id for tensor_id, _ in evictions}
        self.ahead.forget(gone)
        with self.state.arena_busy:
            for tensor_id, action in evictions:
                if (storage := here.get(tensor_id)) is not None:
                    if storage.status is SWAPPING_IN:  # no call has read it
                        self.state.allocator.finish_swap_in(storage)
                    self._evict(storage, action)

    def release(self, storage: Storage) -> None:
        """Evict a storage that a replay has read for the last time, if the plan says so."""
        action = self.ahead.last_reads.get(storage.tensor_id)
        if action is not None:
            self._release([Eviction(storage.tensor_id, action)])

    def _wait_for_copies(self) -> None:
        """Let the next call start only when all copies so far have ended, and free the blocks of swapped-out tensors.
        """
        device = self.state.device
        device.wait(COMPUTE, COPY_OUT, device.positions[COPY_OUT])
        device.wait(COMPUTE, COPY_IN, device.positions[COPY_IN])
        with self.state.arena_busy:
            self.leaving.free_all()

    def arrive(self, storage: Storage) -> None:
        """Make a storage usable that is being copied: cancel its swap-out, or let computation wait for its swap-in."""
        if storage.status is SWAPPING_OUT:
            stay(storage)
        else:
            self.state.allocator.finish_swap_in(storage)
            self.returning.arrived(storage)

    def returned(self, storage: Storage, replay: Sequence[float] | None = None) -> None:
        """Record that a tensor came back on demand. replay: seconds of the replayed calls; None for a swap-in."""
        self.returning.returned(storage, replay)

    # The end of an iteration ---------------------------------------------------------------------------------
    def begin_iteration(self) -> None:
        """Start this iteration's time now (on the wall clock): before it, the program may have waited for data."""
        device = self.state.device
        if device.wall_clock:
            self._began = device.now()

    def end_iteration(self, trace: Callable[[], Trace], *, failed: bool) -> None:
        """Report this iteration's times to the plan follower, which lets the policy correct its plan.
        trace: builds the iteration's trace. failed: the iteration failed, so nothing is reported."""
        device, follower = self.state.device, self.follower
        left = min(self.state.allocator.host.capacity, self.state.on_host.left_bytes)
        follower.planner.limits = replace(follower.planner.limits, host_bytes=left)
        self._settling, self._addresses = follower.settling, follower.offsets
        if follower.observes:
            device.settle()
        now, stalled = device.now(), device.stall_seconds()
        if failed or self.state.tracker.too_long:
            if not failed:
                follower.consensus.reports(None)
            follower.abandon_iteration()
        else:
            follower.end_iteration(trace, seconds=now - self._began, stall_seconds=stalled - self._stalled_before,
                                   returns=self.returning.summary(), link=device.link_seconds_per_byte())
        self._began, self._stalled_before = device.now(), stalled  # without the time of planning

    def pack(self, survivors: Collection[Storage], fresh: Collection[Storage], *, failed: bool) -> None:
        """Move survivors to the addresses that the plan expects, so that they do not split the free bytes.
        What the plan had left to do in this iteration is cancelled. fresh: survivors that this iteration has made.
        failed: an error ended the iteration; then no survivor is moved."""
        if not failed:
            self._pack(survivors, fresh)
        self.ahead.end_iteration()
        self.returning.clear()

    def _pack(self, survivors: Collection[Storage], fresh: Collection[Storage]) -> None:
        state, follower = self.state, self.follower
        known = follower.active.trace.tensors if follower.active is not None else {}
        with state.arena_busy:
            if follower.offsets and state.arena.compacts:
                pack_survivors(state, survivors, self.ahead.away(),
                               passing=[storage for storage in fresh if storage.tensor_id not in known])
            elif follower.plans_ahead:  # the persistent end will do
                slide = state.arena.cheapest_slide(state.arena.free_bytes, in_flight)
                if slide is not None:
                    slide_blocks(state.allocator, *slide)

    def start(self) -> None:
        """Begin the next iteration: if the plan has changed, its time starts now, after the moves of survivors.
        The device times each call from now on if the follower will make a trace of the iteration."""
        if self._settling or self.follower.offsets is not self._addresses:
            self._began = self.state.device.now()
        self.state.device.measure(self.follower.measuring)

    # Questions -----------------------------------------------------------------------------------------------
    @property
    def acts(self) -> bool:  # type: ignore[override] # here it follows from the plan
        """True if the plan that is followed evicts or moves tensors."""
        return self.follower.plans_ahead

    def algorithm(self, signature: Signature) -> str | None:
        """The name of the plan's algorithm for the next call; None without one, or if it plans another signature.
        Blocks whose swap-out has ended are freed first, as the call may need a workspace."""
        if self.leaving:
            self.leaving.free_landed()
        return self.follower.algorithm(signature)

    def drops_next(self, storage: Storage) -> bool:
        """True if the plan drops a storage right after the next call."""
        return self.follower.upcoming().get(storage.tensor_id) is Action.DROP

    def recorded(self) -> tuple[Trace | None, int] | None:
        """The trace of the sequence that is followed, or None, and the number of the next call in the iteration."""
        active = self.follower.active
        return (active.trace if active is not None else None), self.follower.position

    def relent(self) -> bool:
        """Give up the plan, because an allocation has failed. False if no plan was followed."""
        return self.follower.abandon_plan()

    def signatures(self) -> Iterable[Signature]:
        """The signatures of all calls in the known sequences, each once, in no order."""
        return self.follower.signatures()


def attach(memory: Manager, consensus: Alone = ALONE) -> PlanFollower:
    """Attach guided execution to on-demand memory whose policy makes plans; returns the follower of these plans.
    consensus: the agreement of this rank with others."""
    state = memory.state
    device = state.device
    limits = Limits(state.arena.capacity, state.allocator.host.capacity, state.arena.addresses)
    follower = PlanFollower(state.policy, state.link_costs, limits, state.switches,
                            peak_flops=device.profile.peak_flops, measured_iterations=device.measured_iterations,
                            allowance=Allowance(device.host_now, limited=device.wall_clock), consensus=consensus)
    memory.attach(GuidedExecution(memory, follower))
    if device.wall_clock:
        beside.begin()
    return follower
