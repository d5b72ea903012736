"""Brings tensors back on demand: swap-ins, and replays that recompute dropped tensors along their lineage.

A replay runs the calls that compute the dropped tensor again, in program order, each once. While they run, the tensors
that they read may be swapped, and dropped only as a last resort: then a replay within the replay computes them again.
Intermediate values that the program still needs stay as long as memory allows (collective recomputation; Capuchin,
section 5.3)."""

from collections.abc import Iterable, Sequence
from functools import partial

from minidl.errors import OutOfMemory, Unrecoverable
from minidl.memory import neighbourhood
from minidl.memory.evicting import Evicting
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.room import RoomMaker
from minidl.memory.runner import CallRunner
from minidl.memory.shortage import with_full_host
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, OUT, RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Call, Storage


class Replay:
    """Brings storages back to the device.

    recomputed_bytes  bytes that replays have computed, since the start
    seconds           device seconds that replays have taken, since the start
    paged_in_bytes    bytes that were swapped in on demand in this iteration"""

    def __init__(self, state: MemoryState, runner: CallRunner, room: RoomMaker, evicting: Evicting) -> None:
        self.state = state
        self.runner = runner
        self.room = room
        self.evicting = evicting
        self.recomputed_bytes = 0
        self.seconds = 0.0
        self.paged_in_bytes = 0
        self._depth = 0  # how many replays are under way, each within the one before

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring the bytes of all inputs of the call ``op_name`` to the device. Raises OutOfMemory, Unrecoverable."""
        protected, awaited = self.state.protected, self.state.awaited
        bases = list(dict.fromkeys([storage.base for storage in inputs]))
        added = [base for base in bases if base not in protected]
        operands = [base for base in bases if base not in awaited]
        protected.update(added)
        awaited.update(operands)
        try:
            # Replays first, while no operand is pinned: they need the room, and may swap operands that are here.
            if dropped := [base for base in bases if base.status is RECOMPUTE]:
                self.replay(*dropped)
            self._bring_in(bases, added, op_name)
        finally:
            protected.difference_update(added)
            awaited.difference_update(operands)

    # Swap-ins ------------------------------------------------------------------------------------------------
    def _bring_in(self, bases: Sequence[Storage], mine: Iterable[Storage], op_name: str) -> None:
        """Swap in those of ``bases`` that are on the host. Raises OutOfMemory.
        If device and host are both full, storages of ``mine`` that can be replayed give up their host copy and are
        replayed. mine: the bases that no other running replay needs."""
        left = list(mine)
        while True:
            try:
                self._swap_in_all(bases, op_name)
                return
            except OutOfMemory as error:
                instead = next(filter(self._can_be_replayed, left), None) if error.host_full else None
                if instead is None:
                    raise
            left.remove(instead)  # once: it might be swapped out again
            self.evicting.give_up_copy(instead)
            try:
                self.replay(instead)
            except OutOfMemory as error:
                raise with_full_host(self.state, error) from None  # with a larger host no replay would be needed

    def _swap_in_all(self, bases: Sequence[Storage], op_name: str) -> None:
        """Swap in the bases that are on the host, and end copies of bases that are under way. Raises OutOfMemory."""
        state, pinned = self.state, set(bases)
        for base in bases:
            if base.status is SWAPPING_OUT or base.status is SWAPPING_IN:
                state.hooks.arrive(base)
        for base in bases:
            if base.status is OUT:
                self._swap_in(base, pinned, op_name)
        state.access_list.touch(bases)

    def _swap_in(self, storage: Storage, pinned: set[Storage], op_name: str) -> None:
        """Swap in one storage, and wait for the copy. pinned: operands of the call, which are not evicted for it."""
        state = self.state
        with state.arena_busy:
            block = state.hooks.place(storage)
            if block is None:
                block = self.room.allocate(storage.nbytes, storage.me, pinned, op_name, high=storage.persistent)
            storage.residency += 1
            state.allocator.swap_in(storage, block)
        self.paged_in_bytes += storage.nbytes
        state.hooks.returned(storage)

    def _can_be_replayed(self, base: Storage) -> bool:
        """True if ``base`` is only on the host, and can be recomputed without bytes that are being overwritten."""
        calls = missing_calls(base) if base.status is OUT else None
        return calls is not None and not reads(calls, self.state.writing)

    # Replays -------------------------------------------------------------------------------------------------
    def replay(self, *targets: Storage, alone: bool = False) -> None:
        """Recompute dropped storages: run the calls that compute them again, in program order, each once.
        alone: drop each intermediate value after its last use in this replay; otherwise those that the program still
        needs stay. Raises OutOfMemory, and Unrecoverable for a storage without a lineage."""
        calls = _missing(targets)
        alone = alone or not self.state.switches.collective
        state = self.state
        tracker, protected = state.tracker, state.protected
        durations: list[float] = []  # of the replayed calls, once the device knows them
        # In program order, not a set's: the same program gives the same interleaving, whatever the addresses.
        made = dict.fromkeys(s for call in calls for ref in call.outputs
                             if (s := ref()) is not None and s.status is RECOMPUTE)
        uses: dict[Storage, int] = {}
        for call in calls:
            for base in dict.fromkeys(s.base for s in call.inputs):
                uses[base] = uses.get(base, 0) + 1
        held = dict.fromkeys([*uses, *(s for s in made if s.refs)])
        for base in held:
            base.refs += 1  # this replay's own use: the cycle collector may end other handles meanwhile
        fresh = (uses.keys() | set(targets)) - protected
        protected |= fresh
        wanted = set(targets) - state.awaited
        state.awaited |= wanted
        keep_log, tracker.keep_log = tracker.keep_log, False
        state.nested += len(calls) if self._depth else 0
        self._depth += 1
        try:
            for call in calls:
                self.replay_call(call, made, uses, durations)
                for base in dict.fromkeys(s.base for s in call.inputs):
                    uses[base] -= 1
                    if not uses[base]:
                        if base in fresh and base not in targets:
                            protected.discard(base)
                        del held[base]
                        if base in made and not alone and self._shares(base, call):
                            state.shared[base.me] = None  # it has this use of the bytes now
                        else:
                            base.release()
                        state.hooks.release(base)
                if alone:  # drop each value that the rest of the replay does not read
                    self._drop_again(s for s in made if not uses.get(s) and s not in targets)
        finally:
            for base in held:
                base.release()
            protected -= fresh
            state.awaited -= wanted
            self._depth -= 1
            tracker.keep_log = keep_log
        state.hooks.returned(targets[-1], durations)  # the replay of the other targets is part of this one

    def replay_call(self, call: Call, made: dict[Storage, None], uses: dict[Storage, int],
                    durations: list[float]) -> None:
        """Run one call of a replay again.
        made: the storages that the whole replay computes. uses: for each base, how many of the replay's remaining calls
        read it. durations: gets the seconds of the call when the device knows them."""
        signature = call.signature
        if any(s.status is not IN for s in call.inputs):
            self.make_resident(call.inputs, call.op.name)
        donated = sum(1 << i for i, s in enumerate(call.inputs)
                      if s.base in made and uses[s.base] == 1 and not self._shares(s.base, call))
        alive = [ref() for ref in call.outputs]
        keeper = next(storage.keeper for storage in alive if storage is not None)
        outputs = []
        for storage, meta in zip(alive, signature.outputs, strict=True):
            # An output that has its bytes, or is not needed, is computed into a scratch storage instead.
            wanted = storage is not None and storage.status is RECOMPUTE and storage.refs > 0
            outputs.append(storage if wanted and storage is not None else Storage(meta, keeper, -1))
        del alive
        self.runner.run(signature, call.attrs, call.inputs, outputs, donated, (), partial(self._took, durations))
        for storage in outputs:
            self.recomputed_bytes += storage.nbytes
            self._recomputed(storage)

    def _shares(self, base: Storage, call: Call) -> bool:
        """True if a value that ``call`` reads last is kept for other replays, though the program has freed it.
        That is so if other dropped tensors would be computed from it, no plan decides, and the policy only drops
        tensors, by their seconds. Beside swaps, whose prices assume that it is gone, it can make replays run within
        replays."""
        state = self.state
        return (base.refs == 1 and base.status is IN and base.me not in state.shared and not state.writing
                and not state.hooks.acts and state.policy.weighs_recomputation and not state.policy.regime.swaps
                and state.switches.collective and neighbourhood.read_by_missing(base, call))

    def _took(self, durations: list[float], seconds: float) -> None:
        durations.append(seconds)
        self.seconds += seconds

    def _recomputed(self, storage: Storage) -> None:
        """Note that a replay has computed a dropped storage: its target, or an intermediate value."""
        state = self.state
        state.dropped.pop(storage.me, None)
        state.kept[storage.me] = storage.access_count
        neighbourhood.found(storage)
        storage.replays += 1
        storage.replayed_at = now = state.tracker.sequence
        for read in storage.inputs:
            read.base.replayed_at = now

    def _drop_again(self, storages: Iterable[Storage]) -> None:
        """Drop intermediate values of a replay that it does not read any more, if they may be dropped."""
        with self.state.arena_busy:
            for storage in storages:
                if storage.status is IN and storage.refs and self.evicting.lineage_of(storage) is not None:
                    self.evicting.drop(storage)


def _missing(targets: Sequence[Storage]) -> list[Call]:
    """The calls that recompute ``targets``, in program order, each once. Raises Unrecoverable if one is lost."""
    found: dict[int, Call] = {}
    for target in targets:
        calls = missing_calls(target)
        if calls is None:
            raise Unrecoverable(f"tensor {target.tensor_id} ({target.operation_name or 'a leaf'}, {target.meta}) was "
                                "freed, and the tensors that it was computed from are gone")
        found.update((call.sequence, call) for call in calls)
    return [found[sequence] for sequence in sorted(found)]
