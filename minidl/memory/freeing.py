"""The end of a tensor's bytes: at once when nobody can ask for them any more, or queued while the arena is busy."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

from minidl.device.contract import Failure
from minidl.memory.lineage import can_be_made_again, failed_call, missing_calls
from minidl.memory.state import State
from minidl.memory.storage import RECOMPUTE, Storage


class Freeing:
    """Frees bytes on the device and on the host."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._replayable: dict[int, bool] = {}  # of calls, as far as known, until something else is written
        self._known_at = -1  # ``State.writes``

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free the bytes of a storage that nobody can ask for any more.

        record_gone: its record dies too, so that nothing can be computed from it again.
        """
        state = self.state
        if not record_gone and (state.policy.regime.keeps_freed or state.impure and self.starts_a_replay(storage)):
            state.tracker.freed(storage)  # as far as the program is concerned
            return  # it goes with its record
        busy = state.arena_busy
        if busy.on or get_ident() != state.thread:
            state.orphans.append((storage, record_gone))
            return
        busy.on = True  # kept flat: a tensor in two is freed here, once an operation
        try:
            if storage.block is not None:
                state.allocator.leave_device(storage)
            if storage.host is not None:
                state.allocator.forget_host_copy(storage)
            if storage.status is not RECOMPUTE:
                storage.become(RECOMPUTE)
                state.residents.pop(storage.me, None)
            elif state.dropped:
                state.dropped.pop(storage.me, None)
            state.tracker.freed(storage)
        finally:
            busy.on = False

    def starts_a_replay(self, storage: Storage) -> bool:
        """Whether something dropped may have to start from the bytes of a storage that no lineage leads to, past a
        write."""
        state = self.state
        if not state.impure or not state.dropped or storage.call is None or storage.status is RECOMPUTE:
            if not state.dropped:
                self._replayable.clear()  # what is freed now need not be one that can be made again
            return False
        if self._known_at != state.writes:
            self._replayable.clear()
            self._known_at = state.writes
        return not can_be_made_again(storage, state.writing, self._replayable)

    def lose(self, failures: Sequence[Failure]) -> None:
        """Note which tensors have no value, since these calls failed: to ask for one is an error that says so.

        All streams have finished. What was dropped and would need such a call, or its results, has none either.
        """
        state = self.state
        state.thread = get_ident()
        state.writes += 1
        first = failures[0]
        why = failed_call(f"{first.op_name} failed: {first.error}")
        for storage in state.live():
            offset = storage.block.offset if storage.block is not None else None
            if state.device.lost(offset, storage.host, storage.nbytes):
                storage.call = why
                self.deallocate(storage, record_gone=True)
        attrs = {id(failure.attrs) for failure in failures}
        for storage in state.missing():
            calls = missing_calls(storage)
            if calls is None or any(id(call.attrs) in attrs for call in calls):
                storage.call = why
                state.dropped.pop(storage.me, None)

    def free_queued(self) -> None:
        """Free what was left while the arena was busy."""
        orphans = self.state.orphans
        for _ in range(len(orphans)):
            storage, record_gone = orphans.popleft()
            if record_gone or not storage.refs:  # a replay may have come to need it again: it lets go of it later
                self.deallocate(storage, record_gone=record_gone)
