"""Replay: computing dropped tensors again, and keeping that possible around operations in place.

The missing calls are collected along the lineage and run again in program order, each once. While they run, their
sources and intermediate values may be swapped but not dropped, so that a replay ends. Values that come by on the way
and are wanted stay, as long as memory allows (collective recomputation; Capuchin, section 5.3).

Operations in place are the enemy of replay. Before one runs, every dropped value whose replay would read the old bytes
is computed and may then be swapped but not dropped; afterwards lineage does not lead through the write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from minidl.errors import OutOfMemory, Unrecoverable
from minidl.memory import neighbourhood
from minidl.memory.evicting import Evicting
from minidl.memory.lineage import missing_calls, reads, reason
from minidl.memory.residency import Residency
from minidl.memory.runner import CallRunner
from minidl.memory.state import State
from minidl.memory.storage import IN, OUT, RECOMPUTE, Call, Storage


class Replay:
    """Makes dropped storages again. ``recomputed_bytes`` and ``seconds`` count since the start."""

    def __init__(self, state: State, runner: CallRunner, residency: Residency, evicting: Evicting) -> None:
        self.state = state
        self.runner = runner
        self.residency = residency
        self.evicting = evicting
        self.recomputed_bytes = 0
        self.seconds = 0.0  # of device time
        self._lineage_start = 0  # no lineage leads to calls before this one
        self._secured: list[Storage] = []  # computed for the write under way: protected until it has been made

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring every input's bytes to the device, by replays and by copies. Raises OutOfMemory, Unrecoverable."""
        protected = self.state.protected
        bases = list(dict.fromkeys([storage.base for storage in inputs]))
        added = [base for base in bases if base not in protected]
        protected.update(added)
        try:
            # Replays first, with nothing of this call pinned: they need the room, and may swap what was made before.
            for base in bases:
                if base.status is RECOMPUTE:
                    self.replay(base)
            self._bring_in(bases, added, op_name)
        finally:
            protected.difference_update(added)

    def _bring_in(self, bases: Sequence[Storage], mine: Iterable[Storage], op_name: str) -> None:
        """Copies to the device. While one is made both sides hold it, for which there may be no room where both are
        full: then those of ``mine`` that can be are computed again instead, which frees the host's bytes first."""
        left = list(mine)
        while True:
            try:
                self.residency.bring_in(bases, op_name)
                return
            except OutOfMemory as error:
                instead = next(filter(self._can_be_computed, left), None) if error.host_full else None
                if instead is None:
                    raise
            left.remove(instead)  # once: it might be swapped out again
            self.evicting.give_up_copy(instead)
            self.replay(instead)

    def _can_be_computed(self, base: Storage) -> bool:
        """Whether what is on the host alone can be made again."""
        calls = missing_calls(base) if base.status is OUT else None
        return calls is not None and not reads(calls, self.state.writing)

    def replay(self, *targets: Storage, alone: bool = False) -> None:
        """Compute dropped storages again: the missing calls of all in program order, each once.

        alone: no intermediate value is kept. Only the call being replayed is pinned. Raises Unrecoverable for a storage
        without a lineage, OutOfMemory.
        """
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
            base.refs += 1  # someone asks for it: this replay. Others' handles may go to the cycle collector meanwhile.
        fresh = (uses.keys() | set(targets)) - protected
        protected |= fresh
        keep_log, tracker.keep_log = tracker.keep_log, False
        try:
            for call in calls:
                self.replay_call(call, made, uses, durations)
                for base in dict.fromkeys(s.base for s in call.inputs):
                    uses[base] -= 1
                    if not uses[base]:
                        if base in fresh and base not in targets:
                            protected.discard(base)
                        del held[base]
                        base.release()
                        state.hooks.release(base)
                if alone:  # a value that the rest of the replay does not read is dropped at once
                    self._drop_again(s for s in made if not uses.get(s) and s not in targets)
        finally:
            for base in held:
                base.release()
            protected -= fresh
            tracker.keep_log = keep_log
        state.hooks.returned(targets[-1], durations)  # the replay of the others is part of this one

    def replay_call(self, call: Call, made: dict[Storage, None], uses: dict[Storage, int],
                    durations: list[float]) -> None:
        """Run one call again.

        made: what the whole replay makes; uses: base -> how many of the calls that are left read it.
        """
        signature = call.signature
        if any(s.status is not IN for s in call.inputs):
            self.make_resident(call.inputs, call.op.name)
        given = sum(1 << i for i, s in enumerate(call.inputs) if s.base in made and uses[s.base] == 1)
        alive = [ref() for ref in call.outputs]
        memory = next(storage.memory for storage in alive if storage is not None)
        outputs = []
        for storage, meta in zip(alive, signature.outputs, strict=True):
            # A sibling that has its bytes, or that nobody asks for, is computed into a scratch storage instead.
            wanted = storage is not None and storage.status is RECOMPUTE and storage.refs > 0
            outputs.append(storage if wanted and storage is not None else Storage(meta, memory, -1))
        del alive
        self.runner.run(signature, call.attrs, call.inputs, outputs, given, (), partial(self._took, durations))
        for storage in outputs:
            self.recomputed_bytes += storage.nbytes
            self._regenerated(storage)

    def _took(self, durations: list[float], seconds: float) -> None:
        durations.append(seconds)
        self.seconds += seconds

    def _regenerated(self, storage: Storage) -> None:
        """A dropped storage has its bytes again: a replay's target, or what came by on the way."""
        state = self.state
        state.dropped.pop(storage.me, None)
        state.kept[storage.me] = storage.access_count
        neighbourhood.found(storage)
        storage.replays += 1
        storage.replayed_at = now = state.tracker.sequence
        for read in storage.inputs:
            read.base.replayed_at = now

    def _drop_again(self, storages: Iterable[Storage]) -> None:
        """Without collective recomputation: what a replay made on its way goes, if it may."""
        with self.state.arena_busy:
            for storage in storages:
                if storage.status is IN and storage.refs and self.evicting.lineage_of(storage) is not None:
                    self.evicting.drop(storage)

    # Around operations in place ------------------------------------------------------------------------------
    def before_write(self, targets: Iterable[Storage]) -> None:
        """Prepare for an in-place call: values that will be computed from the old bytes are computed now.

        Until ``after_write`` or ``call_off`` nothing may be dropped that would have to read the old bytes. Nor may what
        was computed here: it could be dropped while its input is there for another replay, which then writes over it.
        Raises OutOfMemory, Unrecoverable.
        """
        state = self.state
        state.writing = {storage.base for storage in targets}
        state.writes += 1
        latest = max([base.last_access for base in state.writing])
        if latest >= state.tracker.iteration_start:
            state.impure = True
        if latest < self._lineage_start:
            return  # running statistics, as a rule: nothing that may be replayed has read them
        found = True
        while found:  # a replay may drop what was resident, for the same reason
            found = False
            for other in state.missing():
                if other.status is RECOMPUTE and other.refs and reads(missing_calls(other) or [], state.writing):
                    self.replay(other)
                    found |= other.status is not RECOMPUTE
                    if other not in state.protected:
                        state.protected.add(other)
                        self._secured.append(other)

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """Call ``number`` has changed the bytes: a host copy is stale, and lineage no longer leads to them."""
        state = self.state
        bases = [storage.base for storage in targets]
        with state.arena_busy:
            for base in bases:
                base.mutated_at = number
                if base.host is not None:
                    state.allocator.forget_host_copy(base)
        self._written()
        for base in bases:  # what only this lineage has kept alive ends here, so the arena must not be at work
            base.call = None

    def call_off(self) -> None:
        """The in-place call under way will not be made: its targets may be read, and their readers dropped, again."""
        self._written()

    def _written(self) -> None:
        self.state.writing = set()
        self.state.writes += 1
        self.state.protected.difference_update(self._secured)
        self._secured.clear()

    def end_iteration(self) -> None:
        """Lineage was cut: from here on nothing leads to the calls so far."""
        self._lineage_start = self.state.tracker.sequence + 1


def _missing(targets: Sequence[Storage]) -> list[Call]:
    """The calls that make storages again, in program order. Raises Unrecoverable."""
    found: dict[int, Call] = {}
    for target in targets:
        calls = missing_calls(target)
        if calls is None:
            if why := reason(target):
                raise Unrecoverable(f"tensor {target.tensor_id} ({target.meta}) has no value: {why}")
            raise Unrecoverable(f"tensor {target.tensor_id} ({target.operation_name or 'a leaf'}, {target.meta}) was "
                                "freed, and what it was computed from is gone")
        found.update((call.sequence, call) for call in calls)
    return [found[sequence] for sequence in sorted(found)]
