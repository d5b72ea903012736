"""One known sequence of calls: its trace, the plan that is followed, and how the latest iteration under it went."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from minidl.memory.drift import REMEMBERED
from minidl.memory.storage import TensorId
from minidl.op import Signature
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Plan, Proposal
from minidl.plan.trace import Trace

Step = tuple[Signature, tuple[TensorId, ...], tuple[TensorId, ...]]
Actions = tuple[dict[TensorId, Action], tuple[TensorId, ...]]  # evictions and prefetches after one call


@dataclass(frozen=True, slots=True)
class Returns:
    """How tensors came back in one iteration, by the access after which they had left the device. In seconds.

    late        the compute stream waited for a swap-in that was started ahead (0: it did not have to).
    paged_in    the copy of one that was brought back on demand.
    recomputed  the replay of one that was dropped. Those that came by in another's replay are not here.
    paged_in_bytes  of all that was brought back on demand, in bytes.
    """

    late: Mapping[AccessKey, float] = field(default_factory=dict)
    paged_in: Mapping[AccessKey, float] = field(default_factory=dict)
    recomputed: Mapping[AccessKey, float] = field(default_factory=dict)
    paged_in_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Followed:
    """An iteration that was followed to its end: the plan it ran under, and how it went."""

    plan: Plan
    seconds: float
    stall_seconds: float
    returns: Returns


class Entry:
    """One known sequence of calls with its plan. ``prefixes[i]`` is a hash of the first i calls."""

    def __init__(self, steps: list[Step], trace: Trace) -> None:
        self.steps = steps
        self.trace = trace
        self.proposal = NO_PLAN  # the policy's own notes go with the plan; nobody here reads them
        self.plan = NO_PLAN.plan
        self.last: Followed | None = None
        self.seconds: deque[float] = deque(maxlen=REMEMBERED)  # of the latest iterations under this plan
        self.actions: dict[int, Actions] = {}
        self.followed = 0  # the iteration that was like it latest
        self.prefixes = [0]
        for step in steps:
            self.prefixes.append(hash((self.prefixes[-1], step)))

    def adopt(self, proposal: Proposal) -> None:
        """Follow a plan from the next iteration on."""
        self.proposal = proposal
        if proposal.plan is self.plan:
            return
        self.plan = plan = proposal.plan
        self.seconds.clear()
        if not plan.evictions and not plan.prefetches:
            self.actions = {}
            return
        actions: dict[int, Actions] = {}
        for access in self.trace.accesses:
            key = (access.tensor_id, access.access_count)
            action, prefetch = plan.evictions.get(key), plan.prefetches.get(key, ())
            if action is not None or prefetch:
                evictions, prefetches = actions.get(access.call, ({}, ()))
                if action is not None:
                    evictions[access.tensor_id] = action
                actions[access.call] = evictions, prefetches + prefetch
        self.actions = actions
