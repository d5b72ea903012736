"""The Protocol of a policy, and the facts that a policy sees. Nothing here acts.

The engine carries decisions out and does all the accounting, so every policy is measured the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from minidl.errors import UserError
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Eviction, Plan, Proposal, SavedProposal
from minidl.plan.trace import TensorId, Trace


class Residency(NamedTuple):
    """A tensor on the device that may be evicted now. ``first_access`` is None before its first use in this iteration.

    host_valid         evicting it needs no copy.
    recompute_seconds  to make it again with all that was dropped around it (``memory.neighbourhood``); None where that
                       cannot be done, or the policy does not weigh recomputation.
    idle_calls         calls since its last use, also over iterations; a replay's use counts.
    replays            how often it has been made again.
    free_before, free_after   bytes of the holes that its block touches.
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
    replays: int = 0
    free_before: int = 0
    free_after: int = 0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Why something has to leave: bytes wanted on the device, bytes of the host, how many are free; copies' costs.

    call   the number in its iteration of the call that wants them.
    trace  the measured iteration that this one has been like so far; None where none is known, or the policy plans
           nothing.
    """

    nbytes: int
    host_bytes: int
    host_free_bytes: int
    costs: Costs
    call: int = 0
    trace: Trace | None = None


@dataclass(frozen=True)
class Observation:
    """The results of an iteration under a plan.

    trace, costs, limits   the facts that the plan was made from; the trace is that of the measured iteration.
    late      tensor -> seconds that the compute stream waited for its swap-in at the back-access.
    paged_in  bytes swapped in on demand: the plan had evicted them, and no prefetch brought them back in time.
    seconds   of the iteration; infinite if an allocation failed under the plan.
    may_plan  true if there is time for a search: planning may take a small share of a run on the wall clock.
    unseen    iterations before this one in the transition from another plan, whose time belongs to neither plan.
    """

    trace: Trace
    costs: Costs
    limits: Limits
    seconds: float
    stall_seconds: float
    late: Mapping[TensorId, float]
    paged_in_bytes: int
    may_plan: bool = True
    unseen: int = 0


class Price(Enum):
    """The neighbours of a tensor that count in its recompute_seconds (``memory.neighbourhood``)."""

    REGIONS = "all missing calls that hang together with it, by classes of equivalence"
    NEIGHBOURHOOD = "missing calls that it needs, and those that need it, each once"
    ANCESTORS = "missing calls that it needs"
    OWN = "its own call"


class Front(Enum):
    """The order in which a policy that ``reads_from_front`` ranks residents."""

    ACCESS_LIST = "the tensor access list (``access_order``)"
    RECENCY = "the most idle calls first, then the smallest id"
    PRICE = "seconds of the cheaper way back, for a byte and an idle call"


@dataclass(frozen=True, slots=True)
class Regime:
    """How the engine is to behave for a system that was built on another one.

    keeps_outputs  a call keeps all that it reads and makes until its gradient is taken, as a tape of tensors does.
    keeps_freed    freed bytes stay on the device until they are evicted.
    swaps          False: nothing is ever copied to the host.
    one_piece      victims leave until what is wanted is free in one piece, rather than in total.
    price          what recompute_seconds counts.
    front          the order of a policy that reads residents from its front.
    """

    keeps_outputs: bool = False
    keeps_freed: bool = False
    swaps: bool = True
    one_piece: bool = False
    price: Price = Price.REGIONS
    front: Front = Front.ACCESS_LIST


class Policy(Protocol):
    """Decides what leaves the device. Pure: it sees immutable facts, returns data, and remembers nothing itself.

    ``moves_tensors`` False means that nothing may be evicted at all: an allocation that fails is the end.
    ``weighs_recomputation`` False spares the engine from finding out each Residency's recompute_seconds.
    ``reads_from_front`` True says that ``victims`` ranks as ``regime.front`` does (``memory.access_list``,
    ``memory.stalest``): it is asked about the front of that, and about more only where that is not enough.
    ``plans`` False means that every plan is the empty one: nothing is measured, and ``plan`` is never called.
    ``regime`` is not the usual one for some systems of the literature.
    """

    name: str
    moves_tensors: bool
    weighs_recomputation: bool
    reads_from_front: bool
    plans: bool
    regime: Regime

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """A plan for the iterations after the measured one. Raises Unsuitable where the policy can make none."""
        ...

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Passive mode: what to evict for an allocation, most expendable first.

        The engine takes as many as it needs. A tensor that is not listed stays. One that cannot be swapped out is
        dropped, and one that cannot be dropped is swapped out, whichever was asked for.
        """
        ...

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """The proposal corrected by what was seen; the same object if there is nothing to correct."""
        ...

    def keep(self, proposal: Proposal) -> SavedProposal:
        """What a checkpoint holds of a proposal: the plan that a later run is to begin with."""
        ...

    def recall(self, kept: SavedProposal) -> Proposal:
        """The proposal with which a later run goes on, under the same costs and limits."""
        ...


def required(policy: Any) -> Policy:
    """The policy, if it has all that the engine asks of one; else raises UserError."""
    wanted = [*Policy.__annotations__, *(name for name in vars(Policy) if callable(getattr(OnDemand, name, None)))]
    missing = [name for name in wanted if name[0] != "_" and not hasattr(policy, name)]
    if missing or isinstance(policy, type):
        what = f"the class {policy.__name__}" if isinstance(policy, type) else repr(policy) if policy is None else (
            f"{type(policy).__name__}")
        why = f", which has no {', '.join(missing)}" if missing and policy is not None else ""
        raise UserError(f"a policy is a name or an object with all that minidl.plan.policy.Policy has, not {what}{why}")
    found: Policy = policy
    return found


def required_proposal(policy: Policy, method: str, answer: Any) -> Proposal:
    """The policy's answer, checked to be a proposal. Raises UserError if it is not."""
    if not isinstance(answer, Proposal) or not isinstance(answer.plan, Plan):
        what = f"a Proposal of {type(answer.plan).__name__}" if isinstance(answer, Proposal) else type(answer).__name__
        raise UserError(f"policy {policy.name!r}: {method}() must return a Proposal with a Plan, not {what}")
    return answer


class OnDemand:
    """A base for policies: one that plans nothing, corrects nothing, and keeps the plan alone.

    A policy that is derived from it and plans has ``plan`` and says ``plans = True``; one without the other is a
    TypeError when the class is made.
    """

    name = ""
    moves_tensors = True
    weighs_recomputation = False
    reads_from_front = False
    plans = False
    regime = Regime()

    def __init_subclass__(cls) -> None:
        """The engine asks for plans where ``plans`` is True: raises TypeError where that does not match ``plan``."""
        if cls.plans != (cls.plan is not OnDemand.plan):
            raise TypeError(f"policy {cls.__name__} " + ("says plans = True but has no plan()" if cls.plans else
                                                         "has plan() but does not say plans = True"))

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """No plan."""
        return NO_PLAN

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """The same proposal."""
        return proposal

    def keep(self, proposal: Proposal) -> SavedProposal:
        """The plan without the notes."""
        return SavedProposal(proposal.plan)

    def recall(self, kept: SavedProposal) -> Proposal:
        """The plan as it was, to be followed and not corrected."""
        return Proposal(kept.plan)
