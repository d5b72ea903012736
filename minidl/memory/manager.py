"""What the executor asks of memory, and who does it: the one place where the actors are put together.

    state       the bytes, and the sets that say what may be done with whose
    freeing     the end of a tensor's bytes
    evicting    who may leave the device, and how
    room        a free block, or what can be made free and one piece
    placing     carrying out one call: outputs placed, launched, workspace given back
    residency   swap-ins on demand and ahead of time; evictions as planned
    replay      computing dropped tensors again; operations in place
    boundary    the end of an iteration

Each takes the state and those above it that it needs. ``Ledger`` answers the same questions for a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Protocol

from minidl.device import Device
from minidl.device.contract import Failure
from minidl.device.spill import Spill
from minidl.memory.boundary import Boundary
from minidl.memory.evicting import Evicting
from minidl.memory.freeing import Freeing
from minidl.memory.guided.follower import Guide
from minidl.memory.guided.sequence import Actions, Returns
from minidl.memory.placing import Placing
from minidl.memory.replay import Replay
from minidl.memory.residency import Residency
from minidl.memory.room import Room
from minidl.memory.state import State
from minidl.memory.storage import Storage
from minidl.memory.switches import Switches
from minidl.memory.tracker import Tracker
from minidl.meta import Algorithm
from minidl.op import Attrs, Signature
from minidl.placements.placement import Placement
from minidl.plan.policy import Policy


class Memory(Protocol):
    """What the executor asks of memory: of a Manager, or of a Ledger, which only counts."""

    @property
    def tracker(self) -> Tracker:
        """Numbers calls and accesses."""
        ...

    @property
    def prefetches(self) -> Sized:
        """What is to come back and is due; usually nothing."""
        ...

    @property
    def guide(self) -> Guide | None:
        """Follows a plan; None where none is made."""
        ...

    @property
    def update_bytes(self) -> int:
        """What an update of several tensors may have on the device at once."""
        ...

    def prefetch(self) -> None:
        """Start the swap-ins that are due, as far as there is room, and the replays."""
        ...

    def make_resident(self, inputs: Sequence[Storage], op_name: str) -> None:
        """Bring every input's bytes to the device. Raises OutOfMemory, Unrecoverable."""
        ...

    def carry_out(self, signature: Signature, attrs: Attrs, inputs: Sequence[Storage], outputs: Sequence[Storage],
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

    def act(self, actions: Actions, operands: Iterable[Storage]) -> None:
        """Do what the plan says after a call."""
        ...

    def place_leaf(self, storage: Storage) -> None:
        """Give a new leaf uninitialised bytes. Raises OutOfMemory."""
        ...

    def replay(self, target: Storage) -> None:
        """Compute a dropped storage again. Raises Unrecoverable, OutOfMemory."""
        ...

    def returns(self) -> Returns:
        """How what had left the device in this iteration came back."""
        ...

    def deallocate(self, storage: Storage, *, record_gone: bool = False) -> None:
        """Free bytes that nobody can ask for any more."""
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
    """Memory of one device under one policy. Its methods are those of its actors, bound here."""

    def __init__(self, device: Device, policy: Policy, tracker: Tracker, budget_bytes: int, host_bytes: int,
                 switches: Switches, placement: Placement | None = None, spill: Spill | None = None) -> None:
        self.state = state = State(device, policy, tracker, budget_bytes, host_bytes, switches, placement, spill)
        self.freeing = freeing = Freeing(state)
        self.evicting = evicting = Evicting(state)
        self.room = room = Room(state, evicting)
        self.placing = placing = Placing(state, freeing, room, evicting)
        self.residency = residency = Residency(state, room, evicting)
        self.replaying = replaying = Replay(state, placing, residency, evicting)
        self.boundary = boundary = Boundary(state, freeing, residency, replaying)
        self.tracker, self.guide = tracker, state.guide
        self.allocator, self.arena = state.allocator, state.arena
        self.update_bytes = self.arena.capacity // UPDATE_SHARE
        # Before a call, the call itself, and after it.
        self.prefetches, self.prefetch = residency.prefetches, replaying.ahead
        self.make_resident = replaying.make_resident
        self.before_write, self.after_write = replaying.before_write, replaying.after_write
        self.call_off, self.carry_out = replaying.call_off, placing.carry_out
        self.act = residency.act
        # Storages' beginnings and ends, and the iteration's.
        self.place_leaf = placing.place_leaf
        self.replay = replaying.replay
        self.evict = evicting.evict
        self.deallocate, self.bury, self.lose = freeing.deallocate, freeing.bury, freeing.lose
        self.returns = residency.returns
        self.end_iteration, self.goes_on = boundary.end_iteration, boundary.goes_on
        self.live, self.check = state.live, state.check
