"""What a policy is: the Protocol, and the facts that it is told. Nothing here acts.

The engine carries decisions out and does all the accounting, so every policy is measured the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import EMPTY_PLAN, Eviction, Plan
from minidl.plan.trace import TensorId, Trace


class Residency(NamedTuple):
    """A tensor on the device that may be evicted now. ``first_access`` is None before its first use in this iteration.

    host_valid         evicting it needs no copy.
    recompute_seconds  to make it again with all that was dropped around it (``memory.neighbourhood``); None where that
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
class Pressure:
    """Why something has to leave: bytes wanted on the device, bytes of the host, how many are free; copies' costs."""

    nbytes: int
    host_bytes: int
    host_free_bytes: int
    costs: Costs


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
