"""The facts of one recorded step, as frozen plain data.

A step is a list of events in program order: each piece of work issued to the device. The arena does not change between
two events. A *stay* is a tensor's time at one address, from one event up to, not including, another. A *subject* is a
tensor that had bytes on the device.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from minidl.plan.trace import TensorId, Trace


class EventKind(IntEnum):
    """The kind of an event. BOUNDARY is not work: it marks the end of the step and of the iteration."""

    CALL = 0
    REPLAY = 1
    COPY_OUT = 2
    COPY_IN = 3
    MOVE = 4
    BOUNDARY = 5


class TensorKind(IntEnum):
    """The role of a tensor in training."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    ACTIVATION = 3
    OTHER = 4


class Fate(IntEnum):
    """How a stay ended.

    STAYS: it did not end. MOVED: the tensor was slid to another address. CHANGED: the next stay is at the same address,
    in another state (such as "being copied out").
    """

    STAYS = 0
    FREED = 1
    SWAPPED = 2
    DROPPED = 3
    OVERWRITTEN = 4
    MOVED = 5
    CHANGED = 6


class StayState(IntEnum):
    """The state of a stay: the bytes are present, or are being copied out or in."""

    HERE = 0
    LEAVING = 1
    ARRIVING = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """A tensor that had bytes on the device.
    name: the parameter's, also for its gradient; for other tensors that of the layer that made the tensor, or of the
    operation if layers are unknown; else "".
    line: file and line of the program that made it, or ""."""

    tensor_id: TensorId
    name: str
    nbytes: int
    kind: TensorKind
    line: str = ""


@dataclass(frozen=True, slots=True)
class WorkEvent:
    """One piece of work, and the arena when it was issued.

    call              the position in the iteration of this call, or of the call that the work is for
    subject           position among the subjects of what is copied or moved, or of a call's first output; -1: not known
    start_s, end_s    start and end on its own stream, in seconds from the step's beginning
    time_s            when the compute stream reaches it: ascending over a step's events
    nbytes            bytes copied or moved; 0 for a call or a replay
    used_bytes        bytes of all blocks in use
    largest_bytes     bytes of the largest hole; -1: not known
    workspace         address and bytes of the call's workspace
    """

    kind: EventKind
    op: str
    call: int
    subject: int
    nbytes: int
    start_s: float
    end_s: float
    time_s: float
    used_bytes: int
    largest_bytes: int
    host_bytes: int
    workspace: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's bytes at one address, in one state, from event ``first`` up to, not including, event ``end``.
    subject: the tensor's position among the subjects; offset, size: bytes."""

    subject: int
    offset: int
    size: int
    state: StayState
    first: int
    end: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of the run.

    predicted_seconds   the plan's prediction; None: no plan, or no prediction
    swapped_bytes       bytes copied out and in, together
    plan                the number of its plan among those of the run, from 1; 0: no plan
    """

    seconds: float
    predicted_seconds: float | None
    swapped_bytes: int
    recomputed_bytes: int
    plan: int = 0


@dataclass(frozen=True)
class Recording:
    """One recorded step of a run.

    remarks  (tensor, sentence about why the plan evicts it)
    began_s  the time of its beginning, on a clock that the ranks of a run share
    rank     of those that a page shows side by side; -1: the run has one device
    facts    (name, value) pairs that the page shows as text
    limit_bytes  where the line of the budget is drawn; 0: at budget_bytes. A refused step exceeds its limit
    """

    title: str
    budget_bytes: int
    unmanaged_peak_bytes: int
    host_capacity_bytes: int
    trace: Trace
    subjects: tuple[Subject, ...]
    events: tuple[WorkEvent, ...]
    stays: tuple[Stay, ...]
    steps: Sequence[RecordedStep] = ()
    remarks: Sequence[tuple[TensorId, str]] = ()
    facts: Sequence[tuple[str, Any]] = ()
    began_s: float = 0.0
    rank: int = -1
    limit_bytes: int = 0

    def check(self) -> None:
        """Raise AssertionError unless at every event the stays are disjoint, in the budget, and sum to the used bytes.
        """
        changes: list[list[Stay]] = [[] for _ in range(len(self.events) + 1)]
        for stay in self.stays:
            assert 0 <= stay.first < stay.end <= len(self.events), f"{stay} of {len(self.events)} events"
            changes[stay.first].append(stay)
            changes[stay.end].append(stay)
        live: dict[int, Stay] = {}
        order: list[int] = []  # the addresses of live stays
        used = 0
        for position, event in enumerate(self.events):
            for stay in changes[position]:
                if stay.end == position:
                    assert live.pop(stay.offset) is stay, f"two stays at {stay.offset}"
                    order.remove(stay.offset)
                    used -= stay.size
            for stay in changes[position]:
                if stay.first == position:
                    place = bisect(order, stay.offset)
                    below = order[place - 1] + live[order[place - 1]].size if place else 0
                    above = order[place] if place < len(order) else self.budget_bytes
                    assert below <= stay.offset and stay.offset + stay.size <= above, f"{stay}: {below} to {above} free"
                    live[stay.offset] = stay
                    order.insert(place, stay.offset)
                    used += stay.size
            assert used == event.used_bytes, f"event {position}: stays of {used} bytes, and {event.used_bytes} in use"
