"""What a policy answers: how tensors leave the device and when they come back, as frozen data. Nothing here acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from minidl.plan.trace import TensorId

AccessKey = tuple[TensorId, int]  # {tensor_id, access_count}
ResidencyKey = tuple[TensorId, int]  # {tensor_id, how often it has come to the device before in this iteration}


class Action(Enum):
    """How a tensor leaves the device."""

    SWAP_OUT = "swap out"
    DROP = "drop"  # recompute it when it is wanted


class Eviction(NamedTuple):
    """One tensor to evict, and how."""

    tensor_id: TensorId
    action: Action


class Move(NamedTuple):
    """One tensor whose bytes go to another address (in bytes), within the device."""

    tensor_id: TensorId
    offset: int


@dataclass(frozen=True)
class Plan:
    """What to do after which access. The empty plan is passive mode.

    evictions    evicted-access -> how the tensor leaves the device after it. What was swapped out and has no prefetch
                 is brought back at its back-access; what was dropped is recomputed there.
    prefetches   in-trigger (an access of any tensor) -> the tensors whose swap-in is started after it, in this order.
    offsets      residency -> the address of its bytes. Those that have none, and all when the program or the sizes
                 differ from the plan, are placed as they come.
    waits        accesses after which computation goes on only when all copies queued so far, both ways, have ended: for
                 systems that couple copies with computation.
    releases     access -> evictions after it of tensors that are not accessed by its call: of what was kept for a
                 replay, say.
    replays      access -> dropped tensors that are computed again after it, before the next call: all together, each
                 call once, and nothing that comes by on the way is kept.
    spent        access -> evictions of what the replays after it are the last to read, as soon as they have.
    moves        access -> tensors whose bytes go to another address before the next call, each with that address: what
                 finds no place for all of its time may have several, one after the other.
    algorithms   call (its position in the iteration) -> the algorithm that it takes: no faster one is tried, though its
                 workspace may be free; a slower one is, where this one's is not.
    predicted_seconds   length of an iteration under this plan, if the policy knows.
    """

    evictions: Mapping[AccessKey, Action] = field(default_factory=dict)
    prefetches: Mapping[AccessKey, tuple[TensorId, ...]] = field(default_factory=dict)
    offsets: Mapping[ResidencyKey, int] = field(default_factory=dict)
    waits: frozenset[AccessKey] = frozenset()
    releases: Mapping[AccessKey, tuple[Eviction, ...]] = field(default_factory=dict)
    replays: Mapping[AccessKey, tuple[TensorId, ...]] = field(default_factory=dict)
    spent: Mapping[AccessKey, tuple[Eviction, ...]] = field(default_factory=dict)
    moves: Mapping[AccessKey, tuple[Move, ...]] = field(default_factory=dict)
    algorithms: Mapping[int, str] = field(default_factory=dict)
    predicted_seconds: float | None = None


EMPTY_PLAN = Plan()


@dataclass(frozen=True)
class Proposal:
    """A plan to follow, and beside it what its policy wants to know again when it is told how the plan did.

    The engine follows the plan and hands the notes back with it; it never looks into them. They are None where there
    is nothing to correct. The remark is for people: how a solver came to it, say.
    """

    plan: Plan = EMPTY_PLAN
    notes: Any = None
    remark: str = ""


NO_PLAN = Proposal()


@dataclass(frozen=True)
class SavedProposal:
    """What outlives the run of a proposal: a plan, and what its policy needs to go on from there, as named numbers."""

    plan: Plan
    numbers: Mapping[str, float] = field(default_factory=dict)
