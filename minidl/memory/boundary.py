"""The end of an iteration: what survives it is made real, its lineage is cut, and its counts start again."""

from __future__ import annotations

from collections.abc import Collection

from minidl.errors import Unrecoverable
from minidl.memory.freeing import Freeing
from minidl.memory.lineage import missing_calls
from minidl.memory.replay import Replay
from minidl.memory.residency import Residency
from minidl.memory.state import State
from minidl.memory.storage import OUT, RECOMPUTE, SWAPPING_OUT, TAKEN, Storage, TensorId
from minidl.memory.tracker import GRADIENT_ID, SURVIVOR_STEP


class Boundary:
    """Ends iterations."""

    def __init__(self, state: State, freeing: Freeing, residency: Residency, replay: Replay) -> None:
        self.state = state
        self.freeing = freeing
        self.residency = residency
        self.replay = replay
        self._went_on = False  # this iteration, after an optimizer's step

    def goes_on(self) -> bool:
        """Whether the iteration goes on after an optimizer's step, which it does once: where the program holds a result
        whose gradient has not been taken, as what a GAN's generator has made while the discriminator takes its step."""
        tracker = self.state.tracker
        if self._went_on or not self._awaits_gradient():
            return False
        self._went_on, tracker.updated = True, False
        return True

    def _awaits_gradient(self) -> bool:
        return any(storage.requires_grad and storage.refs > storage.saved and (call := storage.call) is not None
                   and call.needs and call.saved is not TAKEN
                   for storage in (*self.state.live(), *self.state.missing()))

    def end_iteration(self, *, failed: bool = False) -> None:
        """Make survivors real and cut their lineage, so that nothing pins what this iteration read.

        After a failure nothing is computed any more: a dropped tensor keeps its lineage until the program asks for it,
        and is a leaf to the program all the same.
        Raises Unrecoverable, OutOfMemory.
        """
        state, self._went_on = self.state, False
        dropped = state.missing()
        # A storage with bytes becomes a leaf first: to make room for the others it may be swapped, but not dropped.
        for storage in state.live():
            if storage.call is not None:
                _cut(storage)
        if failed:  # whether a tensor has bytes or must be computed again is no difference to the program
            for storage in dropped:
                for call in missing_calls(storage) or ():
                    call.forget()
                storage.sever()
        for storage in [] if failed else dropped:
            if not storage.refs:
                continue  # a storage that was cut had the last use of it; others may still be computed by way of it
            if storage.status is RECOMPUTE:
                if missing_calls(storage) is None:
                    raise Unrecoverable(f"tensor {storage.tensor_id} was dropped and cannot be computed again")
                self.replay.replay(storage)
            _cut(storage)
        live = dict.fromkeys([*state.live(), *dropped])
        for storage in live:
            storage.access_count = 0
            storage.residency = int(storage.status not in (OUT, SWAPPING_OUT))  # a tensor that is away is still to come
            if not failed:
                storage.missing_readers = None  # nothing is missing now
        fresh = [storage for storage in live if 0 <= storage.tensor_id < SURVIVOR_STEP]  # made in this iteration
        _renumber(live)
        self.freeing.free_queued()
        state.impure = False
        if not failed:
            self.replay.end_iteration()
        state.hooks.pack(live, fresh, failed=failed)
        state.kept.clear()
        state.access_list.forget()
        self.residency.paged_in_bytes = 0


def _cut(storage: Storage) -> None:
    """Make a storage with bytes a leaf. A storage that only its own call has a use for is freed instead, and keeps its
    lineage: a dropped tensor may have to be computed by way of it."""
    storage.sever()
    if storage.status is not RECOMPUTE:
        storage.call = None


def _renumber(survivors: Collection[Storage]) -> None:
    """Give a tensor that has outlived its iteration an id that no tensor of a later one gets by its position.

    It is the same in every iteration: the id of a parameter's gradient follows from the parameter's; a tensor that was
    held before keeps its id, so that a program with masks or caches makes the same calls again; a new one takes the
    lowest free id, so that a program that replaces its state in each iteration soon does.
    """
    owners = {s.grad.storage.base: s for s in survivors if s.persistent and s.grad is not None}
    new = []
    for storage in survivors:
        if storage in owners:
            storage.tensor_id = GRADIENT_ID - owners[storage].tensor_id
        elif 0 <= storage.tensor_id < SURVIVOR_STEP or storage.tensor_id >= GRADIENT_ID:  # or no parameter's any more
            new.append(storage)
    taken: dict[int, set[TensorId]] = {}  # by position
    for storage in survivors:
        taken.setdefault(storage.tensor_id % SURVIVOR_STEP, set()).add(storage.tensor_id)
    for storage in new:
        position = storage.tensor_id % SURVIVOR_STEP
        tensor_id = position + SURVIVOR_STEP
        while tensor_id in taken[position]:
            tensor_id += SURVIVOR_STEP
        taken[position].add(tensor_id)
        storage.tensor_id = tensor_id
