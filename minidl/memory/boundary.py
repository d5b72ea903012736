"""The end of an iteration: recomputes dropped tensors that the program still holds, cuts lineage, restarts counts."""

from collections.abc import Collection

from minidl.errors import Unrecoverable
from minidl.memory.freeing import Freeing
from minidl.memory.leftovers import Leftovers
from minidl.memory.lineage import missing_calls
from minidl.memory.replay import Replay
from minidl.memory.state import MemoryState
from minidl.memory.storage import OUT, RECOMPUTE, SWAPPING_OUT, TAKEN, Storage, TensorId
from minidl.memory.tracker import GRADIENT_ID, SURVIVOR_STEP
from minidl.memory.writing import WriteGuard

AWAY = (OUT, SWAPPING_OUT)


class Boundary:
    """Ends iterations, and decides whether an optimizer's step ends the current one."""

    def __init__(self, state: MemoryState, freeing: Freeing, replaying: Replay, guard: WriteGuard,
                 leftovers: Leftovers) -> None:
        self.state = state
        self.leftovers = leftovers
        self.freeing = freeing
        self.replaying = replaying
        self.guard = guard
        self._went_on = False  # this iteration has gone on after an optimizer's step

    def goes_on(self) -> bool:
        """True if an optimizer's step does not end the iteration; at most once in an iteration.
        This is so if the program holds a result whose gradient has not been taken: for instance the output of a GAN's
        generator, while the discriminator takes its step."""
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
        """Recompute dropped survivors and cut all lineage, so that lineage keeps no tensor of this iteration alive.
        failed: the iteration failed, so nothing is computed. A dropped tensor then keeps its lineage until it is
        needed, but no gradient flows through it. Raises Unrecoverable, OutOfMemory."""
        state, self._went_on = self.state, False
        self.leftovers.unshare_all()
        dropped = state.missing()
        # Storages with bytes become leaves first: then they may be swapped to make room, but not dropped.
        for storage in state.live():
            if storage.call is not None:
                _cut(storage)
        if failed:  # the program must not see whether a tensor has bytes or is dropped
            for storage in dropped:
                for call in missing_calls(storage) or ():
                    call.forget()
                storage.sever()
        for storage in [] if failed else dropped:
            if not storage.refs:
                continue  # only another storage's lineage used it
            if storage.status is RECOMPUTE:
                if missing_calls(storage) is None:
                    raise Unrecoverable(f"tensor {storage.tensor_id} was dropped and cannot be recomputed")
                self.replaying.replay(storage)
            _cut(storage)
        live = dict.fromkeys([*state.live(), *dropped])
        for storage in live:
            storage.access_count = 0
            storage.residency = 0 if storage.status in AWAY else 1  # 0: its first stay is to come
            if not failed:
                storage.missing_readers = None  # none is dropped now
        fresh = [storage for storage in live if 0 <= storage.tensor_id < SURVIVOR_STEP]  # made in this iteration
        _renumber(live)
        self.freeing.free_queued()
        state.impure = False
        if not failed:
            self.guard.end_iteration()
        state.hooks.pack(live, fresh, failed=failed)
        state.kept.clear()
        state.nested = 0
        state.access_list.forget()
        self.replaying.paged_in_bytes = 0


def _cut(storage: Storage) -> None:
    """Cut a storage off the autograd graph, and make it a leaf if it has bytes.
    If only its own call had saved it, it loses its bytes here, and keeps its lineage for replays."""
    storage.sever()
    if storage.status is not RECOMPUTE:
        storage.call = None


def _renumber(survivors: Collection[Storage]) -> None:
    """Give each survivor of an iteration an id that no tensor of a later iteration gets.
    Ids must be the same in each iteration, as plans name tensors by id. A gradient's id is computed from its
    parameter's. An older survivor keeps its id. A new one takes the lowest free id, so a program that replaces its
    state in each iteration soon repeats its ids."""
    owners = {s.grad.storage.base: s for s in survivors if s.grad is not None and s.persistent}
    new = []
    for storage in survivors:
        if storage in owners:
            storage.tensor_id = GRADIENT_ID - owners[storage].tensor_id
        elif 0 <= storage.tensor_id < SURVIVOR_STEP or storage.tensor_id >= GRADIENT_ID:  # or of no parameter any more
            new.append(storage)
    if not new:
        return
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
