"""One known sequence of calls: its trace, the plan that is followed, and how the latest iteration under it went."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from minidl.memory.guided.drift import REMEMBERED
from minidl.memory.storage import TensorId
from minidl.op import Signature
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Eviction, Move, Plan, Proposal
from minidl.plan.trace import Trace

SETTLING = 2  # iterations between two plans: the first evicts and packs survivors, the second moves the rest

Step = tuple[Signature, tuple[TensorId, ...], tuple[TensorId, ...]]


class Actions(NamedTuple):
    """The actions of a plan after one call, in this order; see ``Plan``. waits: for all copies, before swap-ins."""

    evictions: Mapping[TensorId, Action] = {}
    releases: tuple[Eviction, ...] = ()
    waits: bool = False
    prefetches: tuple[TensorId, ...] = ()
    replays: tuple[TensorId, ...] = ()
    spent: tuple[Eviction, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class Returns:
    """How tensors came back in one iteration, by the access after which they had left the device. In seconds.

    late        how long the compute stream waited for a prefetch; 0 if it was in time.
    paged_in    the copy of a tensor that came back on demand.
    recomputed  the replay of a dropped tensor. Intermediate values of another tensor's replay are not here.
    paged_in_bytes  bytes of all that came back on demand.
    """

    late: Mapping[AccessKey, float] = field(default_factory=dict)
    paged_in: Mapping[AccessKey, float] = field(default_factory=dict)
    recomputed: Mapping[AccessKey, float] = field(default_factory=dict)
    paged_in_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Followed:
    """An iteration that was followed to its end: its plan, with the policy's remark, and its times."""

    plan: Plan
    seconds: float
    stall_seconds: float
    returns: Returns
    remark: str = ""


class KnownSequence:
    """One known sequence of calls with its plan. ``prefixes[i]`` is a hash of the first i calls."""

    def __init__(self, steps: list[Step], trace: Trace) -> None:
        self.steps = steps
        self.trace = trace
        self.proposal = NO_PLAN  # the plan, and the policy's own notes, which the engine does not read
        self.plan = NO_PLAN.plan
        self.last: Followed | None = None
        self.seconds: deque[float] = deque(maxlen=REMEMBERED)  # of the latest iterations under this plan
        self.actions: dict[int, Actions] = {}
        self.followed = 0  # the latest iteration that followed it
        self.settling = 0  # iterations that still lead from one plan to another; their times count for neither
        self.unseen = 0  # iterations that the policy has not seen, since they settled
        self._leaves_away = False
        self.prefixes = [0]
        for step in steps:
            self.prefixes.append(hash((self.prefixes[-1], step)))

    def adopt(self, proposal: Proposal) -> None:
        """Follow a plan from the next iteration on. If the old or the new plan has tensors away between iterations, the
        change takes some iterations."""
        self.proposal = proposal
        if proposal.plan is self.plan:
            return
        self.plan = plan = proposal.plan
        self.seconds.clear()
        left_away, self._leaves_away = self._leaves_away, _leaves_away(plan, self.trace)
        self.settling = SETTLING if left_away or self._leaves_away else 0
        self.actions = _actions(plan, self.trace)


def _actions(plan: Plan, trace: Trace) -> dict[int, Actions]:
    """The actions after each call that has some."""
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
    """True if a plan evicts a tensor that outlives the iteration after its last access."""
    lasting = {tensor_id for tensor_id, _ in plan.evictions
               if tensor_id in trace.tensors and trace.tensors[tensor_id].persistent}
    last = {access.tensor_id: access.access_count for access in trace.accesses if access.tensor_id in lasting}
    return any((tensor_id, count) in plan.evictions for tensor_id, count in last.items())
