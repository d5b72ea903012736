"""One known sequence of calls: its trace, its plan, and the times of the latest iteration that followed the plan."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from minidl.memory.guided.drift import REMEMBERED
from minidl.memory.storage import TensorId
from minidl.op import Signature
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Eviction, Move, Plan, Proposal
from minidl.plan.trace import Trace

SETTLING = 2  # iterations between two plans: the first evicts and packs survivors, the second moves the rest

Step = tuple[Signature, tuple[TensorId, ...], tuple[TensorId, ...]]


class Actions(NamedTuple):
    """The actions of a plan after one call, carried out in the order of the fields.

    evictions   operands of the call that are evicted: tensor id -> swap-out or drop
    releases    other tensors that are evicted
    waits       True if computation waits for all copies so far
    prefetches  ids of tensors whose swap-in starts
    replays     ids of dropped tensors that are replayed before the next call
    spent       tensors that are evicted once these replays have read them for the last time
    moves       tensors that are moved before the next call, each with its new address"""

    evictions: Mapping[TensorId, Action] = {}
    releases: tuple[Eviction, ...] = ()
    waits: bool = False
    prefetches: tuple[TensorId, ...] = ()
    replays: tuple[TensorId, ...] = ()
    spent: tuple[Eviction, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class Returns:
    """How evicted tensors came back in one iteration, by the access after which each had left the device.

    late            seconds that computation waited for a prefetch; 0 if it was in time
    paged_in        seconds of the swap-in of a tensor that came back on demand
    recomputed      seconds of the replay that was started for a dropped tensor
    paged_in_bytes  bytes of all tensors that were swapped in on demand"""

    late: Mapping[AccessKey, float] = field(default_factory=dict)
    paged_in: Mapping[AccessKey, float] = field(default_factory=dict)
    recomputed: Mapping[AccessKey, float] = field(default_factory=dict)
    paged_in_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Followed:
    """An iteration that followed its plan to the end: the plan, its times, and the policy's ``remark`` on the plan."""

    plan: Plan
    seconds: float
    stall_seconds: float
    returns: Returns
    remark: str = ""


class KnownSequence:
    """One known sequence of calls with its plan.

    steps     the calls: (signature, ids of tensors read, ids of tensors made)
    trace     the measured iteration from which the plan was made
    actions   the plan's actions, by the number of the call after which they are carried out
    prefixes  prefixes[i] is a hash of the first i calls"""

    def __init__(self, steps: list[Step], trace: Trace) -> None:
        self.steps = steps
        self.trace = trace
        self.proposal = NO_PLAN  # the plan, and the policy's own notes, which the engine does not read
        self.plan = NO_PLAN.plan
        self.last: Followed | None = None
        self.seconds: deque[float] = deque(maxlen=REMEMBERED)  # of the latest iterations under this plan
        self.actions: dict[int, Actions] = {}
        self.followed = 0  # the latest iteration that followed it
        self.settling = 0  # iterations to come in which tensors still move from the old plan's places; not counted
        self.unseen = 0  # such iterations that the policy was not told of
        self._leaves_away = False
        self._plan_facts: tuple[str, ...] = ()
        self.prefixes = [0]
        for step in steps:
            self.prefixes.append(hash((self.prefixes[-1], step)))

    def adopt(self, proposal: Proposal) -> None:
        """Follow the plan of ``proposal`` from the next iteration on.
        If the old or the new plan has tensors off the device between iterations, the times of the first iterations are
        not counted."""
        self.proposal = proposal
        if proposal.plan is self.plan:
            return
        self.plan = plan = proposal.plan
        self._plan_facts = ()
        self.seconds.clear()
        left_away, self._leaves_away = self._leaves_away, _leaves_away(plan, self.trace)
        self.settling = SETTLING if left_away or self._leaves_away else 0
        self.actions = _actions(plan, self.trace)

    def plan_facts(self) -> tuple[str, ...]:
        """The fields of the plan as texts, which are equal for equal plans."""
        if not self._plan_facts:
            values = [getattr(self.plan, each.name) for each in fields(self.plan)]
            self._plan_facts = tuple([repr(sorted(value.items() if isinstance(value, Mapping) else value))
                                      if isinstance(value, (Mapping, frozenset)) else repr(value) for value in values])
        return self._plan_facts


def _actions(plan: Plan, trace: Trace) -> dict[int, Actions]:
    """The actions of a plan by the number of the call after which they are carried out."""
    found: dict[int, Actions] = {}
    if not (plan.evictions or plan.prefetches or plan.releases or plan.replays or plan.waits or plan.moves):
        return found
    for access in trace.accesses:
        key = (access.tensor_id, access.access_count)
        action = plan.evictions.get(key)
        new = Actions({} if action is None else {access.tensor_id: action}, plan.releases.get(key, ()),
                      key in plan.waits, plan.prefetches.get(key, ()), plan.replays.get(key, ()),
                      plan.spent.get(key, ()), plan.moves.get(key, ()))
        if any(new):
            old = found.get(access.call, Actions())
            found[access.call] = Actions({**old.evictions, **new.evictions}, old.releases + new.releases,
                                         old.waits or new.waits, old.prefetches + new.prefetches,
                                         old.replays + new.replays, old.spent + new.spent, old.moves + new.moves)
    return found


def _leaves_away(plan: Plan, trace: Trace) -> bool:
    """True if a plan leaves a persistent tensor off the device at the iteration's end."""
    lasting = {tensor_id for tensor_id, _ in plan.evictions
               if tensor_id in trace.tensors and trace.tensors[tensor_id].persistent}
    last = {access.tensor_id: access.access_count for access in trace.accesses if access.tensor_id in lasting}
    return any((tensor_id, count) in plan.evictions for tensor_id, count in last.items())
