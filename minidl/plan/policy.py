"""The Protocol of a policy, and the facts that a policy sees. Only data: nothing here evicts or copies.

The engine executes the decisions and does all accounting, so that every policy is measured in the same way.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from minidl.errors import UserError
from minidl.outside.validation import is_real, shown
from minidl.plan.costs import Costs, Limits
from minidl.plan.mistakes import mistake, no_action
from minidl.plan.plan import ACTIONS, NO_PLAN, Eviction, Plan, Proposal, SavedProposal
from minidl.plan.trace import TensorId, Trace


class Residency(NamedTuple):
    """A tensor on the device that may be evicted now, as a policy sees it.

    nbytes, offset     bytes of its block on the device, and the block's address.
    first_access, last_access   numbers of the calls that used it first and last in this iteration; None before that.
    host_valid         True if the host has a valid copy, so that a swap-out needs no copy.
    recompute_seconds  time to replay it together with the dropped tensors around it (``memory.neighbourhood``); None if
                       it cannot be replayed or the policy does not weigh recomputation.
    idle_calls         calls since its last use, across iterations; uses by replays count.
    replays            how often it has been replayed.
    free_before, free_after   bytes of the holes before and after its block.
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
    """A failed allocation, for which the policy chooses tensors to evict.

    nbytes, host_bytes   bytes to allocate on the device; bytes of host memory for swapped tensors.
    call   position in its iteration of the call that allocates.
    trace  a measured iteration whose calls this one has repeated so far; None if there is none or the policy does not
           plan.
    """

    nbytes: int
    host_bytes: int
    host_free_bytes: int
    costs: Costs
    call: int = 0
    trace: Trace | None = None


@dataclass(frozen=True)
class Observation:
    """The measured results of an iteration under a plan.

    trace     the earlier, measured iteration that the plan was made from; not the iteration under the plan.
    costs, limits   those of now; the plan may have been made under others.
    seconds   duration of the iteration; infinite if an allocation failed under the plan.
    stall_seconds   the part of it in which computation waited for copies.
    late      tensor -> seconds that the compute stream waited for its swap-in at the back-access.
    paged_in_bytes  bytes swapped in on demand: the plan had evicted them, and no prefetch brought them back in time.
    may_plan  True if there is time for a search: on the wall clock planning may take a small share of a run.
    unseen    number of iterations just before this one in which the engine left another plan for this one. Their times
              are not observed, since they belong to neither plan."""

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
    """Which dropped neighbours of a tensor count in its recompute_seconds (``memory.neighbourhood``)."""

    REGIONS = "all dropped calls connected with it, by equivalence classes"
    NEIGHBOURHOOD = "dropped calls that it needs, and those that need it, each once"
    ANCESTORS = "dropped calls that it needs"
    OWN = "its own call"


class FrontOrder(Enum):
    """The order in which a policy with ``reads_from_front`` ranks the tensors on the device, the best victim first."""

    ACCESS_LIST = "the tensor access list (``policies/passive``)"
    RECENCY = "the most idle calls first, then the smallest id"
    PRICE = "the least seconds of the cheaper way back, divided by bytes and idle calls"


@dataclass(frozen=True, slots=True)
class Regime:
    """Settings of the engine that imitate the framework on which another system was built.

    keeps_outputs  True: a call keeps all its inputs and outputs until its gradient is computed, as a tape does.
    keeps_freed    True: bytes of tensors that the program has freed stay on the device until they are evicted.
    swaps          False: no tensor is ever copied to the host.
    one_piece      True: evict until the needed bytes are free in one hole; False: until they are free in total.
    price          the calls that recompute_seconds counts.
    front          the order of a policy that reads residents from its front."""

    keeps_outputs: bool = False
    keeps_freed: bool = False
    swaps: bool = True
    one_piece: bool = False
    price: Price = Price.REGIONS
    front: FrontOrder = FrontOrder.ACCESS_LIST


class Policy(Protocol):
    """A policy decides which tensors leave the device. It is pure: it sees frozen facts and returns data.

    moves_tensors         False: nothing may be evicted; an allocation that fails ends the run.
    weighs_recomputation  False: the engine need not compute each Residency's recompute_seconds.
    reads_from_front      True: ``victims`` ranks by ``regime.front`` (``memory.access_list``, ``memory.stalest``), so
                          the engine passes only the front of that order, and more if the front is not enough.
    plans                 False: every plan is empty; the engine measures nothing and never calls ``plan``.
    regime                settings of the engine; some systems of the literature need other ones than the default."""

    name: str
    moves_tensors: bool
    weighs_recomputation: bool
    reads_from_front: bool
    plans: bool
    regime: Regime

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return a plan for the iterations after the measured one. Raises Unsuitable if the policy finds none."""

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return the tensors to evict for a failed allocation (on-demand mode), the first victim first.
        The engine evicts as many as it needs, in this order. Tensors that are not listed stay; those that are not in
        ``resident`` are an error. A tensor that cannot be swapped out is dropped instead, and a tensor that cannot be
        dropped is swapped out."""

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """Return the proposal corrected by the observed results, or the same object if it needs no correction."""

    def keep(self, proposal: Proposal) -> SavedProposal:
        """Return the part of a proposal that a checkpoint stores; ``recall`` turns it into a proposal again."""

    def recall(self, kept: SavedProposal) -> Proposal:
        """Return the proposal that a resumed run starts with, under the same costs and limits."""


def required(policy: Any) -> Policy:
    """Return the policy after a check that it has all members of ``Policy``. Raises UserError if one is missing."""
    wanted = [*Policy.__annotations__, *(name for name, member in vars(Policy).items() if callable(member))]
    missing = [name for name in wanted if name[0] != "_" and not hasattr(policy, name)]
    if missing or isinstance(policy, type):
        what = f"the class {policy.__name__}" if isinstance(policy, type) else repr(policy) if policy is None else (
            f"{type(policy).__name__}")
        why = f", which has no {', '.join(missing)}" if missing and policy is not None else ""
        raise UserError(f"a policy is a name or an object with the members of plan.policy.Policy, not {what}{why}")
    found: Policy = policy
    return found


def required_proposal(policy: Policy, method: str, answer: Any, trace: Trace, limits: Limits) -> Proposal:
    """Return the policy's answer after a check that it is a Proposal for a trace. Raises UserError if not.
    method: the name of the one that answered. limits: those that it was asked with."""
    whose = f"policy {policy.name!r}: {method}()"
    if not isinstance(answer, Proposal) or not isinstance(answer.plan, Plan):
        what = f"a Proposal of {type(answer.plan).__name__}" if isinstance(answer, Proposal) else type(answer).__name__
        raise UserError(f"{whose} must return a Proposal with a Plan, not {what}")
    wrong = mistake(answer.plan, trace, limits.device_bytes)
    if wrong is not None:
        raise UserError(f"{whose} returns a plan that cannot be followed: {wrong}")
    return answer


def required_saved(policy: Policy, answer: Any) -> SavedProposal:
    """Return the policy's answer to ``keep`` after a check that a checkpoint can store it. Raises UserError if not."""
    if isinstance(answer, SavedProposal) and isinstance(answer.plan, Plan) and isinstance(answer.numbers, Mapping) and (
            all(isinstance(name, str) and is_real(number) for name, number in answer.numbers.items())):
        return answer
    raise UserError(f"policy {policy.name!r}: keep() must return a SavedProposal with a Plan and numbers of at least 0 "
                    f"by name, not {shown(repr(answer))}")


def require_victims(policy: Policy, answer: Any, resident: Collection[TensorId]) -> None:
    """Raise UserError if the policy's answer does not say which tensors to evict. resident: those it was shown."""
    whose, wanted = f"policy {policy.name!r}: victims()", "must return a sequence of Eviction(tensor_id, action)"
    if not isinstance(answer, Iterable):
        raise UserError(f"{whose} {wanted}, not {shown(repr(answer))}; to evict nothing, an empty one")
    for each in answer:
        if not isinstance(each, Sequence) or len(each) != 2:
            raise UserError(f"{whose} {wanted}, and {shown(repr(each))} is none")
        tensor_id, action = each
        if tensor_id not in [*resident]:
            raise UserError(f"{whose} names tensor {shown(tensor_id)}, which is none of the {len(resident)} tensors "
                            "that it was shown")
        if action not in ACTIONS:
            raise UserError(f"{whose} gives tensor {tensor_id} {no_action(action)}")


class OnDemand:
    """A base class for policies that only choose victims: no plan, no corrections, no notes in a checkpoint.
    A subclass that plans defines ``plan`` and sets ``plans = True``; only one of the two raises TypeError."""

    name = ""
    moves_tensors = True
    weighs_recomputation = False
    reads_from_front = False
    plans = False
    regime = Regime()

    def __init_subclass__(cls) -> None:
        """Raise TypeError unless ``plans`` is True exactly if the subclass defines ``plan``."""
        if cls.plans != (cls.plan is not OnDemand.plan):
            raise TypeError(f"policy {cls.__name__} " + ("says plans = True but has no plan()" if cls.plans else
                                                         "has plan() but does not say plans = True"))

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the empty plan."""
        return NO_PLAN

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        """Return the same proposal."""
        return proposal

    def keep(self, proposal: Proposal) -> SavedProposal:
        """Return the plan without the notes."""
        return SavedProposal(proposal.plan)

    def recall(self, kept: SavedProposal) -> Proposal:
        """Return the saved plan, without notes, so that it is not corrected."""
        return Proposal(kept.plan)
