"""The memory that the executor uses, and the one place where its parts (the actors) are put together.

    state       the bytes, and the sets that say what may be done with each storage
    freeing     frees the bytes of tensors without further use
    evicting    asks the policy for victims, and evicts them
    leftovers   drops what only replays use, when memory is short
    room        finds a free block, or evicts until there is one
    runner      runs one call: places outputs, launches the kernel, takes the workspace back
    replaying   swaps tensors in on demand, and recomputes dropped ones
    guard       prepares operations in place
    boundary    ends an iteration

Each actor's constructor takes the state and the actors above it in this list that it needs. ``Ledger`` takes the
manager's place in a dry run. Guided mode attaches at ``hooks``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from minidl.device import Device
from minidl.device.spill import Spill
from minidl.memory import neighbourhood
from minidl.memory.boundary import Boundary
from minidl.memory.evicting import Evicting
from minidl.memory.freeing import Freeing
from minidl.memory.hooks import Attached, Hooks
from minidl.memory.leftovers import Leftovers
from minidl.memory.replay import Replay
from minidl.memory.room import RoomMaker
from minidl.memory.runner import CallRunner
from minidl.memory.state import MemoryState
from minidl.memory.storage import RECOMPUTE, Keeper, Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.memory.writing import WriteGuard
from minidl.meta import Algorithm
from minidl.op import Attrs, Signature
from minidl.placements.placement import Placement
from minidl.plan.plan import Action
from minidl.plan.policy import Policy


class Runner(Protocol):
    """Runs single calls: a ``CallRunner``, or a ``Ledger``, which only counts."""

    def run(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
            donated: int, saved: Sequence[int], timed: Callable[[float], None]) -> Algorithm:
        """Place the outputs of a call and launch it; returns the algorithm that runs. Raises OutOfMemory.
        donated: bit i is set if input i is used for the last time. saved: indices of the tensors that the call saves
        for its gradient. timed: called with the call's seconds on the device."""

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf bytes on the device, uninitialised. Raises OutOfMemory."""


class Memory(Protocol):
    """The memory of an executor: a ``Manager``, or a ``Ledger`` in a dry run.

    tracker       numbers calls and tensors
    keeper        frees the bytes of ordinary storages
    update_bytes  the most bytes that one optimizer call on several parameters may have on the device at once"""

    tracker: Tracker
    update_bytes: int

    @property
    def keeper(self) -> Keeper:
        """The object that frees the bytes of ordinary storages."""

    @property
    def runner(self) -> Runner:
        """Runs single calls."""

    @property
    def state(self) -> Attached:
        """The object whose field ``hooks`` guided execution sets."""

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring the bytes of all inputs of the call ``op_name`` to the device. Raises OutOfMemory, Unrecoverable."""

    def before_write(self, targets: Sequence[Storage], inputs: Sequence[Storage]) -> None:
        """Prepare for a call that reads ``inputs`` and writes ``targets`` in place. Raises OutOfMemory, Unrecoverable.
        """

    def after_write(self, targets: Sequence[Storage], number: int) -> None:
        """Note that call ``number`` of the run has written ``targets`` in place."""

    def call_off(self, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> None:
        """Undo the preparations for a call that was not made, as memory was short or its kernel refused to run."""

    def replay(self, target: Storage) -> None:
        """Recompute a dropped storage. Raises Unrecoverable, OutOfMemory."""

    def goes_on(self) -> bool:
        """True if an optimizer's step does not end the iteration, because a gradient is still to be taken."""

    def end_iteration(self, *, failed: bool = False) -> None:
        """Recompute the dropped survivors and cut all lineage; after a failure (``failed``) recompute nothing."""

    def keep_on_host(self, nbytes: int) -> Callable[[], None]:
        """Reserve host memory for a tensor that stays there; return a function that ends this. Raises OutOfMemory."""

    def check(self) -> None:
        """Raises AssertionError if an invariant does not hold."""


UPDATE_SHARE = 8  # an optimizer call on several parameters takes at most 1/8 of the device


class Manager:
    """The memory of one device under one policy: makes the actors, and passes the executor's requests to them."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None, spill: Spill | None = None) -> None:
        self.state = state = MemoryState(device, policy, tracker, budget_bytes, host_bytes, switches, placement, spill)
        self.tracker, self.allocator, self.arena = tracker, state.allocator, state.arena
        self.keeper = self.freeing = Freeing(state)
        self.evicting = Evicting(state)
        self.leftovers = Leftovers(state, self.evicting)
        self.room = RoomMaker(state, self.evicting, self.leftovers)
        self.runner = CallRunner(state, self.freeing, self.room, self.evicting)
        self.replaying = Replay(state, self.runner, self.room, self.evicting)
        self.guard = WriteGuard(state, self.replaying, self.leftovers)
        self.boundary = Boundary(state, self.freeing, self.replaying, self.guard, self.leftovers)
        self.keep_on_host = state.on_host.keep
        self.update_bytes = self.arena.capacity // UPDATE_SHARE

    def attach(self, hooks: Hooks) -> None:
        """Call the methods of ``hooks`` from now on, in place of the defaults."""
        self.state.hooks = hooks

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring the bytes of all inputs of the call ``op_name`` to the device. Raises OutOfMemory, Unrecoverable."""
        self.replaying.make_resident(inputs, op_name)

    def replay(self, target: Storage) -> None:
        """Recompute a dropped storage. Raises Unrecoverable, OutOfMemory."""
        self.replaying.replay(target)

    def before_write(self, targets: Sequence[Storage], inputs: Sequence[Storage]) -> None:
        """Recompute dropped tensors whose replay needs the old ``targets``. Raises OutOfMemory, Unrecoverable."""
        self.guard.before_write(targets, inputs)

    def after_write(self, targets: Sequence[Storage], number: int) -> None:
        """Note that call ``number`` of the run has written ``targets`` in place."""
        self.guard.after_write(targets, number)

    def call_off(self, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> None:
        """Undo the preparations for a call that was not made.
        The outputs lose their bytes; inputs whose bytes were donated to outputs count as dropped."""
        self.guard.call_off()
        for storage in outputs:
            if storage.status is not RECOMPUTE:
                self.freeing.deallocate(storage)
        for base in {storage.base for storage in inputs}:
            if base.status is RECOMPUTE and base.refs:
                self.state.dropped[base.me] = None
                neighbourhood.read_again(base)

    def evict(self, storage: Storage, action: Action) -> bool:
        """Take a storage off the device by a drop or a swap-out; False if it cannot leave."""
        return self.evicting.evict(storage, action)

    def free_queued(self) -> None:
        """Free the storages that were queued while the arena was being changed."""
        self.freeing.free_queued()

    def end_iteration(self, *, failed: bool = False) -> None:
        """Recompute dropped survivors (unless ``failed``), cut all lineage. Raises Unrecoverable, OutOfMemory."""
        self.boundary.end_iteration(failed=failed)

    def goes_on(self) -> bool:
        """True if an optimizer's step does not end the iteration, because a gradient is still to be taken."""
        return self.boundary.goes_on()

    def live(self) -> list[Storage]:
        """The storages that have bytes on the device or on the host."""
        return self.state.live()

    def check(self) -> None:
        """Raises AssertionError unless blocks, host extents and statuses agree."""
        self.state.check()
