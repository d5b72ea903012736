"""What a policy answers: how tensors leave the device and when they come back, as frozen data. Nothing here acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

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


@dataclass(frozen=True)
class Plan:
    """What to do after which access. The empty plan is passive mode.

    evictions    evicted-access -> how the tensor leaves the device after it. What was swapped out and has no prefetch
                 is brought back at its back-access; what was dropped is recomputed there.
    prefetches   in-trigger (an access of any tensor) -> the tensors whose swap-in is started after it, in this order.
    offsets      residency -> the address of its bytes. Those that have none, and all when the program or the sizes
                 differ from the plan, are placed as they come.
    predicted_seconds   length of an iteration under this plan, if the policy knows.
    share        of the device's budget that it was made for.
    round        how many plans came before it; best and best_seconds are the one that was fastest when it was tried.
    """

    evictions: Mapping[AccessKey, Action] = field(default_factory=dict)
    prefetches: Mapping[AccessKey, tuple[TensorId, ...]] = field(default_factory=dict)
    offsets: Mapping[ResidencyKey, int] = field(default_factory=dict)
    predicted_seconds: float | None = None
    round: int = 0
    share: float = 1.0
    best: "Plan | None" = None
    best_seconds: float = inf


EMPTY_PLAN = Plan()
