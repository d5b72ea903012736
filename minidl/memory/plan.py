"""What a policy is told and what it answers: frozen data and one Protocol. Nothing here acts.

The engine carries decisions out and does all the accounting, so every policy is measured the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple, Protocol

from minidl.device.profiles import Profile
from minidl.memory.trace import TensorId, Trace

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


class Residency(NamedTuple):
    """A tensor on the device that may be evicted now. ``first_access`` is None before its first use in this iteration.

    host_valid         evicting it needs no copy.
    recompute_seconds  to make it again with all that was dropped around it (``memory.region``); None where that
                       cannot be done, or the policy does not weigh recomputation.
    idle_calls         calls since its last use, also over iterations; a replay's use counts.
    """

    tensor_id: TensorId
    nbytes: int
    offset: int
    first_access: int | None
    last_access: int | None
    persistent: bool
    host_valid: bool
    recompute_seconds: float | None
    idle_calls: int


@dataclass(frozen=True, slots=True)
class Costs:
    """What a plan is weighed with: seconds a byte takes on the link each way, and its latency a copy."""

    out_seconds_per_byte: float
    in_seconds_per_byte: float
    latency_seconds: float

    @classmethod
    def of(cls, profile: Profile) -> "Costs":
        """What a device's link costs."""
        return cls(1.0 / profile.link_out_bandwidth, 1.0 / profile.link_in_bandwidth, profile.link_latency_s)


@dataclass(frozen=True, slots=True)
class Pressure:
    """Why something has to leave: bytes wanted on the device, bytes of the host, how many are free; copies' costs."""

    nbytes: int
    host_bytes: int
    host_free_bytes: int
    costs: Costs


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that a plan may use."""

    device_bytes: int
    host_bytes: int


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


@dataclass(frozen=True)
class Observation:
    """What an iteration under a plan showed.

    trace, costs, limits   what the plan was made from; the trace is that of the iteration that was measured.
    late      tensor -> seconds that the compute stream waited for its swap-in at the back-access.
    paged_in  bytes that had to be brought back on demand: the plan had evicted them without a prefetch that worked.
    """

    trace: Trace
    costs: Costs
    limits: Limits
    seconds: float
    stall_seconds: float
    late: Mapping[TensorId, float]
    paged_in_bytes: int


class Policy(Protocol):
    """Decides what leaves the device. Pure: it sees immutable facts and returns data.

    ``moves_tensors`` False means that nothing may be evicted at all: an allocation that fails is the end.
    ``weighs_recomputation`` False spares the engine from finding out each Residency's recompute_seconds.
    ``plans`` False means that every plan is the empty one, so nothing needs to be measured.
    """

    name: str
    moves_tensors: bool
    weighs_recomputation: bool
    plans: bool

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        """A plan for the iterations after the measured one."""
        ...

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Passive mode: what to evict for an allocation, most expendable first. The engine takes as many as it needs;
        one that is not listed stays. What cannot leave in the way that is asked for leaves in the other."""
        ...

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        """The plan corrected by what was seen; the same object if there is nothing to correct."""
        ...


class OnDemand:
    """A base for policies that plan nothing."""

    name = ""
    moves_tensors = True
    weighs_recomputation = False
    plans = False

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Plan:
        return EMPTY_PLAN

    def feedback(self, plan: Plan, observed: Observation) -> Plan:
        return plan
