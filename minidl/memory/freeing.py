"""Frees the bytes of tensors that nothing uses any more.

They are freed at once or, while the arena is being changed, before the next call."""

import atexit
from threading import get_ident

from minidl.memory import neighbourhood
from minidl.memory.lineage import can_be_recomputed
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, RECOMPUTE, Storage


class Freeing:
    """Frees bytes on the device and on the host. It is the keeper of ordinary storages (``Storage.keeper``)."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self.tracker = state.tracker
        self._recomputable: dict[int, bool] = {}  # by number of a call: can it be replayed? valid until the next write
        self._known_at = -1  # ``MemoryState.writes`` when these answers were found

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free a storage's bytes, which the program uses no more: now, or before the next call if the arena is busy.
        Bytes that a replay still needs, or that the policy's regime keeps, stay. record_gone: the Storage object itself
        ends, too, so no tensor can be recomputed from it, and no bytes stay."""
        state = self.state
        if not record_gone and (state.policy.regime.keeps_freed or state.impure and self.starts_a_replay(storage)):
            self.tracker.freed(storage)  # to the program it is free; its bytes go with its record
            return
        busy = state.arena_busy
        if busy.on or get_ident() != state.thread:
            state.orphans.append((storage, record_gone))
            return
        busy.on = True  # kept flat: every second operation frees a tensor here
        try:
            if storage.block is not None:
                state.allocator.leave_device(storage)
            if storage.host is not None:
                state.allocator.forget_host_copy(storage)
            if storage.status is IN:
                storage.status = RECOMPUTE  # as ``set_status``, which takes longer
                state.live_refs.pop(storage.me, None)
            elif storage.status is not RECOMPUTE:
                storage.set_status(RECOMPUTE)
                state.live_refs.pop(storage.me, None)
            elif state.dropped:
                state.dropped.pop(storage.me, None)
            if storage.missing_readers:
                neighbourhood.read_again(storage)
            self.tracker.freed(storage)
        finally:
            busy.on = False

    def starts_a_replay(self, storage: Storage) -> bool:
        """True if a storage must keep its bytes for replays: a dropped tensor can be computed only from them.
        This is so if a write in place has ended the storage's own lineage."""
        state = self.state
        if not state.impure or not state.dropped or storage.call is None or storage.status is RECOMPUTE:
            if not state.dropped:
                self._recomputable.clear()  # tensors freed now may not be recomputable later
            return False
        if self._known_at != state.writes:
            self._recomputable.clear()
            self._known_at = state.writes
        if can_be_recomputed(storage, state.writing, self._recomputable):
            return False
        if neighbourhood.starts_a_replay(storage):
            return True
        self._forget_after(storage.call.sequence)  # it goes for good, and with it what later calls would read
        return False

    def _forget_after(self, sequence: int) -> None:
        """Forget which calls after this one can be replayed: only they may read what it made."""
        known = self._recomputable
        while known and (last := next(reversed(known))) > sequence:  # mostly what was asked last is the latest call
            del known[last]
        if known and max(known) > sequence:
            known.clear()

    def free_queued(self) -> None:
        """Free the storages that were queued while the arena was being changed."""
        orphans = self.state.orphans
        for _ in range(len(orphans)):
            storage, record_gone = orphans.popleft()
            if record_gone or not storage.refs:  # a replay may need it again, and releases it later
                self.deallocate(storage, record_gone=record_gone)


# As Python ends it empties modules while tensors in others are still there. From then on nothing is freed any more.
atexit.register(setattr, Freeing, "deallocate", lambda *storages, **options: None)
