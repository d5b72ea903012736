"""Tensors that stay on the device only for replays: those that replays have computed, or still need.

When memory is short they are freed without a copy, since they can be computed again.
"""

import weakref
from collections.abc import Collection

from minidl.memory import neighbourhood
from minidl.memory.evicting import Evicting
from minidl.memory.lineage import missing_calls, reads
from minidl.memory.state import MemoryState
from minidl.memory.storage import IN, RECOMPUTE, Storage

PATIENCE = 16  # replays within replays may run this many times the calls of the iteration so far


class Leftovers:
    """Frees tensors that only replays use."""

    def __init__(self, state: MemoryState, evicting: Evicting) -> None:
        self.state = state
        self.evicting = evicting

    def drop(self, need: int, pinned: set[Storage]) -> None:
        """Drop tensors that replays have computed, until ``need`` bytes are free.
        Those of ``MemoryState.shared`` go first, then those of ``kept``; no copy is needed. pinned: operands of the
        current call, which stay."""
        state = self.state
        for ref in reversed(list(state.shared)):  # a replay of later values starts from the earlier ones
            if state.arena.free_bytes >= need:
                return
            if (shared := ref()) is None or shared not in pinned and shared not in state.protected:
                self.unshare(ref)
        for ref, count in list(state.kept.items()):
            if state.arena.free_bytes >= need:
                return
            storage = _left(ref, count)
            if storage is None:
                del state.kept[ref]
            elif storage not in pinned and self.evicting.lineage_of(storage) is not None:
                self.evicting.drop(storage)
                del state.kept[ref]

    def drop_there(self, offset: int, nbytes: int, pinned: Collection[Storage]) -> None:
        """Drop tensors that replays have computed and whose blocks overlap ``nbytes`` at an address.
        pinned: operands of the call under way, which stay."""
        for ref, count in list(self.state.kept.items()):
            storage = _left(ref, count)
            block = None if storage is None else storage.block
            if (storage is not None and block is not None and block.offset < offset + nbytes
                    and offset < block.offset + block.size and storage not in pinned
                    and self.evicting.lineage_of(storage) is not None):
                self.evicting.drop(storage)
                del self.state.kept[ref]

    def free_unread(self, pinned: set[Storage]) -> None:
        """Free tensors that the program has freed, and a write in place has kept for replays, if no replay reads them.
        A replay would read one if a dropped tensor that the program needs starts from it. pinned: operands."""
        state = self.state
        read = {s.base for gone in state.missing() if gone.refs for call in missing_calls(gone) or ()
                for s in call.inputs}
        for storage in state.live() if state.impure else ():
            if storage.status is IN and not storage.refs and storage not in read and storage not in pinned:
                self._free(storage)
                state.writes += 1  # what was computed from it may have to stay now

    def drop_awaiting(self, need: int, pinned: set[Storage]) -> None:
        """As a last resort, drop tensors that replays still need, or that must be saved before a write in place.
        The oldest go first, until ``need`` bytes are free; replays inside replays compute them again. It ends, because
        a replay computes only calls older than the one that it serves, but may take long: PATIENCE limits it."""
        state = self.state
        if state.nested > PATIENCE * (state.tracker.sequence - state.tracker.iteration_start + 1):
            return
        held = [(s.call.sequence, s.tensor_id, s) for s in state.live()
                if s.status is IN and s.call is not None and s not in state.awaited and s not in pinned]
        for _, _, storage in sorted(held, key=lambda entry: entry[:2]):
            if state.arena.free_bytes >= need:
                return
            calls = missing_calls(storage)
            if calls is not None and not (state.secured and reads(calls, state.writing)):
                self.evicting.drop(storage)
                state.writes += 1  # a write under way may end its lineage, and then what was computed from it must stay

    def unshare(self, ref: weakref.ref[Storage]) -> None:
        """Free a value that was kept only for replays, unless it has other uses."""
        state, storage = self.state, ref()
        del state.shared[ref]
        if storage is None:
            return
        storage.refs -= 1
        if not storage.refs and storage.status is not RECOMPUTE:
            busy, state.arena_busy.on = state.arena_busy.on, True
            self._free(storage)
            neighbourhood.lost(storage)
            state.arena_busy.on = busy

    def _free(self, storage: Storage) -> None:
        """Free the bytes of a storage that has no use, on the device and on the host."""
        state = self.state
        if storage.block is not None:
            state.allocator.leave_device(storage)
        state.allocator.forget_host_copy(storage)
        storage.set_status(RECOMPUTE)
        neighbourhood.read_again(storage)
        state.live_refs.pop(storage.me, None)

    def unshare_all(self) -> None:
        """Free all values that were kept only for replays."""
        for ref in list(self.state.shared):
            self.unshare(ref)


def _left(ref: weakref.ref[Storage], count: int) -> Storage | None:
    """The storage that a replay has computed, if it is still on the device and had ``count`` accesses until now.
    None otherwise: the program has accessed it since the replay, or it is gone."""
    storage = ref()
    return storage if storage is not None and storage.status is IN and storage.access_count == count else None
