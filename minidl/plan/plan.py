"""A policy's decisions: how tensors leave the device and when they return, as frozen data. Nothing here acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from minidl.outside.shown import Shown
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


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """The actions after each access. The empty plan is passive mode.

    evictions    evicted-access -> how the tensor leaves the device after it. A swapped-out tensor without a prefetch
                 returns at its back-access; a dropped tensor is recomputed there.
    prefetches   in-trigger (an access of any tensor) -> the tensors whose swap-in starts after it, in this order.
    offsets      residency -> the address of its bytes. The placement chooses the address of a residency without one,
                 and of all residencies if the program or its sizes differ from the plan.
    waits        accesses after which computation waits until all copies queued so far, both ways, have ended: for
                 systems that couple copies with computation.
    releases     access -> evictions after it of tensors that its call does not access, such as tensors that were kept
                 for a replay.
    replays      access -> dropped tensors that are recomputed after it, before the next call: all together, each call
                 once, without keeping by-products.
    spent        access -> evictions of tensors whose last readers are the replays after it, as soon as they have read.
    moves        access -> tensors whose bytes go to another address before the next call, each with that address. A
                 tensor without one address for its whole lifetime may have several in turn.
    algorithms   call (its position in the iteration) -> its algorithm. A faster one is not tried, even if its workspace
                 is free; a slower one is tried if this one's workspace is not free.
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

    def facts(self) -> dict[str, str]:
        """The number of actions of each kind that the plan has, for ``repr``."""
        swapped = sum(action is Action.SWAP_OUT for action in self.evictions.values())
        counts = {"swap-outs": swapped, "drops": len(self.evictions) - swapped,
                  "prefetches": sum(len(tensors) for tensors in self.prefetches.values()),
                  "addresses": len(self.offsets), "waits": len(self.waits),
                  "replays": sum(len(tensors) for tensors in self.replays.values()),
                  "moves": sum(len(tensors) for tensors in self.moves.values()), "algorithms": len(self.algorithms)}
        seconds = {} if self.predicted_seconds is None else {"predicted seconds": f"{self.predicted_seconds:.6g}"}
        return {**{name: str(count) for name, count in counts.items() if count}, **seconds}


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
