"""Swap-ins on demand: the bytes of a call's operands are on the device when the call is launched.

A dropped tensor comes back by a replay, which is not done here (``replay.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from minidl.memory.room import Room
from minidl.memory.state import State
from minidl.memory.storage import OUT, SWAPPING_IN, SWAPPING_OUT, Storage


class Residency:
    """Brings tensors back from the host."""

    def __init__(self, state: State, room: Room) -> None:
        self.state = state
        self.room = room
        self.paged_in_bytes = 0  # in this iteration

    def bring_in(self, bases: Sequence[Storage], op_name: str) -> None:
        """Have the bytes of storages on the device that are there, on the host, or on their way. Raises OutOfMemory."""
        state, pinned = self.state, set(bases)
        for base in bases:
            if base.status is SWAPPING_OUT or base.status is SWAPPING_IN:
                state.hooks.arrive(base)
        for base in bases:
            if base.status is OUT:
                self._swap_in(base, pinned, op_name)
        state.access_list.touch(bases)

    def _swap_in(self, storage: Storage, pinned: set[Storage], op_name: str) -> None:
        """Bring a storage back while computation waits."""
        state = self.state
        with state.arena_busy:
            block = state.hooks.place(storage)
            if block is None:
                block = self.room.allocate(storage.nbytes, storage.me, pinned, op_name, high=storage.persistent)
            storage.residency += 1
            state.allocator.swap_in(storage, block)
        self.paged_in_bytes += storage.nbytes
        state.hooks.returned(storage)
