"""A policy's decisions: how tensors leave the device and when they return, as frozen data. Nothing here acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from minidl.outside.shown import Shown
from minidl.plan.trace import TensorId

AccessKey = tuple[TensorId, int]  # {tensor_id, access_count}
ResidencyKey = tuple[TensorId, int]  # {tensor_id, number of its earlier residencies in this iteration}


class Action(Enum):
    """How a tensor leaves the device: by a swap-out or by a drop."""

    SWAP_OUT = "swap out"
    DROP = "drop"  # a replay computes it again at its next access


ACTIONS = (Action.SWAP_OUT, Action.DROP)


class Eviction(NamedTuple):
    """A tensor to evict, and whether to swap it out or to drop it."""

    tensor_id: TensorId
    action: Action


class Move(NamedTuple):
    """A relocation: a tensor's bytes move to another address, ``offset`` in bytes, within the device."""

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
    waits        accesses after which computation waits until all copies queued so far, in both directions, have ended:
                 for systems that couple copies with computation.
    releases     access -> evictions after it of tensors that its call does not access, such as tensors that were kept
                 for a replay.
    replays      access -> dropped tensors that are replayed together after it, before the next call: each call once;
                 intermediates are not kept.
    spent        access -> evictions of tensors that only the replays after it still read, right after their last read.
    moves        access -> tensors whose bytes go to another address before the next call, each with that address. A
                 tensor without one address for its whole lifetime may have several in turn.
    algorithms   call (its position in the iteration) -> its algorithm. A faster one is not tried, even if its workspace
                 is free; a slower one is tried if this one's workspace is not free.
    predicted_seconds   duration of an iteration under this plan, or None if the policy does not predict it.
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
    """A plan, with its policy's private notes.

    The engine follows the plan. It returns the notes unread when it reports to the policy's ``feedback``; notes of None
    mean that the policy corrects nothing. ``remark`` is for people, for example a solver's status.
    """

    plan: Plan = EMPTY_PLAN
    notes: Any = None
    remark: str = ""


NO_PLAN = Proposal()


@dataclass(frozen=True)
class SavedProposal:
    """A proposal in a checkpoint: the plan, and the numbers, by name, that its policy needs to continue from it."""

    plan: Plan
    numbers: Mapping[str, float] = field(default_factory=dict)
