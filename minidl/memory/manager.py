"""Memory as the executor sees it, and the one place where the actors are put together.

    state       the bytes, and the sets that say what may be done with each storage
    freeing     the end of a tensor's bytes
    evicting    the policy is asked who leaves, and tensors leave
    room        a free block, or one that evictions make
    runner      one call: outputs placed, launched, workspace given back
    residency   swap-ins on demand
    replaying   dropped tensors computed again; operations in place
    boundary    the end of an iteration

Each takes the state and those above it that it needs. ``Ledger`` answers the same questions for a dry run. Guided
execution attaches at ``hooks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from minidl.device import Device
from minidl.device.contract import Failure
from minidl.device.spill import Spill
from minidl.memory.boundary import Boundary
from minidl.memory.evicting import Evicting
from minidl.memory.freeing import Freeing
from minidl.memory.hooks import Hooks
from minidl.memory.replay import Replay
from minidl.memory.residency import Residency
from minidl.memory.room import Room
from minidl.memory.runner import CallRunner
from minidl.memory.state import State
from minidl.memory.storage import Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm
from minidl.op import Attrs, Signature
from minidl.placements.placement import Placement
from minidl.plan.plan import Action
from minidl.plan.policy import Policy


class Memory(Protocol):
    """The memory of an executor: a ``Manager``, or a ``Ledger``, which only counts."""

    hooks: Hooks

    @property
    def tracker(self) -> Tracker:
        """Numbers calls and accesses."""
        ...

    @property
    def update_bytes(self) -> int:
        """The most bytes that an update of several tensors may have on the device at once."""
        ...

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring every input's bytes to the device. Raises OutOfMemory, Unrecoverable."""
        ...

    def run(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
            given: int, saved: Sequence[int], timed: Callable[[float], None]) -> Algorithm:
        """Place a call's outputs and launch it; returns the algorithm that runs. Raises OutOfMemory."""
        ...

    def before_write(self, targets: Iterable[Storage]) -> None:
        """Prepare for a call that writes these in place."""
        ...

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """Call ``number`` has written these in place."""
        ...

    def call_off(self) -> None:
        """The call that was prepared for will not be made."""
        ...

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf uninitialised bytes. Raises OutOfMemory."""
        ...

    def replay(self, target: Storage) -> None:
        """Compute a dropped storage again. Raises Unrecoverable, OutOfMemory."""
        ...

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free bytes that no program can ask for any more."""
        ...

    def lose(self, failures: Sequence[Failure]) -> None:
        """Note which tensors have no value since these calls failed."""
        ...

    def goes_on(self) -> bool:
        """Whether the iteration goes on after an optimizer's step, as a gradient is still to be taken."""
        ...

    def end_iteration(self, *, failed: bool = False) -> None:
        """Make survivors real and cut their lineage."""
        ...

    def check(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        ...


UPDATE_SHARE = 8  # an update of several tensors takes at most this part of the device: other calls need more


class Manager:
    """Memory of one device under one policy: the actors, and the questions of the executor handed on to them."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None, spill: Spill | None = None) -> None:
        self.state = state = State(device, policy, tracker, budget_bytes, host_bytes, switches, placement, spill)
        self.tracker, self.hooks = tracker, state.hooks
        self.allocator, self.arena = state.allocator, state.arena
        self.freeing = Freeing(state)
        self.evicting = Evicting(state)
        self.room = Room(state, self.evicting)
        self.runner = CallRunner(state, self.freeing, self.room, self.evicting)
        self.residency = Residency(state, self.room)
        self.replaying = Replay(state, self.runner, self.residency, self.evicting)
        self.boundary = Boundary(state, self.freeing, self.residency, self.replaying)
        self.update_bytes = self.arena.capacity // UPDATE_SHARE
        self.run = self.runner.run  # every call's path: one step less
        self.deallocate = self.freeing.deallocate

    def attach(self, hooks: Hooks) -> None:
        """From now on these hooks are asked."""
        self.hooks = self.state.hooks = hooks

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring every input's bytes to the device, by replays and by copies. Raises OutOfMemory, Unrecoverable."""
        self.replaying.make_resident(inputs, op_name)

    def before_write(self, targets: Iterable[Storage]) -> None:
        """Compute what must be computed from the old bytes of these. Raises OutOfMemory, Unrecoverable."""
        self.replaying.before_write(targets)

    def after_write(self, targets: Iterable[Storage], number: int) -> None:
        """Call ``number`` has written these in place."""
        self.replaying.after_write(targets, number)

    def call_off(self) -> None:
        """The call that was prepared for will not be made."""
        self.replaying.call_off()

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf uninitialised bytes. Raises OutOfMemory."""
        self.runner.place_leaf(storage)

    def replay(self, target: Storage) -> None:
        """Compute a dropped storage again. Raises Unrecoverable, OutOfMemory."""
        self.replaying.replay(target)

    def evict(self, storage: Storage, action: Action) -> bool:
        """Take a storage off the device; False if it cannot leave."""
        return self.evicting.evict(storage, action)

    def free_queued(self) -> None:
        """Free the storages that were queued while the arena was busy."""
        self.freeing.free_queued()

    def lose(self, failures: Sequence[Failure]) -> None:
        """Note which tensors have no value since these calls failed."""
        self.freeing.lose(failures)

    def end_iteration(self, *, failed: bool = False) -> None:
        """Make survivors real and cut their lineage. Raises Unrecoverable, OutOfMemory."""
        self.boundary.end_iteration(failed=failed)

    def goes_on(self) -> bool:
        """Whether the iteration goes on past an update (``Boundary.goes_on``)."""
        return self.boundary.goes_on()

    def live(self) -> list[Storage]:
        """The storages that have bytes on the device or on the host."""
        return self.state.live()

    def check(self) -> None:
        """Raises AssertionError unless blocks, host extents and statuses agree."""
        self.state.check()
