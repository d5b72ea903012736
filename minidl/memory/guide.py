"""Guided execution: compares each call with a measured trace, and says what its plan wants done after it.

A sequence of calls is planned when it has been seen twice: the first time warms up, the second is measured (where time
is not modelled it is measured several times, for the medians). While an iteration runs, each call is compared with the
entry being followed (op, shapes, fixed attributes and tensor ids; not seeds or rates). At the first difference another
known sequence with the same beginning takes over; if there is none, the rest of the iteration runs in passive mode.
Decides nothing itself, and moves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from minidl.memory.allowance import Allowance
from minidl.memory.drift import REMEMBERED, Drift, noise, predicted_seconds
from minidl.memory.storage import Storage, TensorId
from minidl.memory.switches import Switches
from minidl.op import Signature
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Plan, Proposal, ResidencyKey
from minidl.plan.policy import Observation, Policy
from minidl.plan.static import with_static_times
from minidl.plan.trace import Trace, typical

NOWHERE: Mapping[ResidencyKey, int] = {}

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


class Guide:
    """Which known sequence this iteration follows, and how far it has come."""

    def __init__(self, policy: Policy, costs: Costs, limits: Limits, switches: Switches, *, peak_flops: float,
                 allowance: Allowance, measured_iterations: int = 1) -> None:
        """peak_flops: what the device computes a second, for static times; measured_iterations: that a trace takes."""
        self.policy = policy
        self.costs = costs
        self.limits = limits
        self.switches = switches
        self.peak_flops = peak_flops
        self.measured_iterations = measured_iterations
        self.entries: list[Entry] = []
        self.active: Entry | None = None
        self.diverged = 0  # iterations that left every known sequence
        self.measuring = False  # the next iteration is measured if it is like the last one
        self._steps: list[Step] = []
        self.allowance = allowance
        self._drift = Drift(costs)
        self._struck: Entry | None = None  # its plan failed in this iteration
        self._recalled: list[tuple[Trace, Proposal]] = []
        self._measured: dict[int, list[Trace]] = {}  # of sequences that were seen, but not often enough, by their hash

    def follow(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...]) -> Actions | None:
        """Note the next call; what is to be done after it, if it is the one that was expected."""
        step = signature, read, made
        position = len(self._steps)
        self._steps.append(step)
        entry = self.active
        if entry is None:
            return None
        if position < len(entry.steps) and entry.steps[position] == step:
            return entry.actions.get(position)
        self.active = entry = self._sibling(entry.prefixes[position] if position < len(entry.prefixes) else 0, step)
        if entry is None:
            self.diverged += 1
            return None
        return entry.actions.get(position)

    def address(self, storage: Storage) -> int | None:
        """Where the plan wants the next bytes of a storage."""
        return self.offsets.get((storage.tensor_id, storage.residency))

    @property
    def offsets(self) -> Mapping[ResidencyKey, int]:
        """Where the plan that is followed wants bytes to go; empty if it does not say, or none is followed."""
        return self.active.plan.offsets if self.active is not None else NOWHERE

    @property
    def plans_ahead(self) -> bool:
        """Whether the plan that is followed wants anything done."""
        return self.active is not None and bool(self.active.actions)

    def upcoming(self) -> dict[TensorId, Action]:
        """What is to be evicted after the next call, if it is the one that is expected."""
        actions = self.active.actions.get(len(self._steps)) if self.active is not None else None
        return actions[0] if actions is not None else {}

    def _sibling(self, prefix: int, step: Step) -> Entry | None:
        """Another known sequence that begins like this iteration, this call included."""
        wanted = hash((prefix, step))
        position = len(self._steps)
        return next((e for e in self.entries if position < len(e.prefixes) and e.prefixes[position] == wanted), None)

    @property
    def observes(self) -> bool:
        """Whether the policy will be told how this iteration went."""
        entry = self.active
        return self.measuring or self.plans_ahead or (entry is not None and entry.proposal.notes is not None)

    def strike(self) -> bool:
        """An allocation has failed. If a plan was followed that is its end: the iteration goes on without, and it is
        not followed again. Whether it was."""
        entry = self.active
        if entry is None or not entry.actions:
            return False
        self._struck, self.active = entry, None
        return True

    def abandon_iteration(self) -> None:
        """The iteration failed: what was seen of it says nothing, and the next one starts from the beginning."""
        self._steps = []
        if self._struck is not None:
            self._judge(self._struck, inf, 0.0, Returns())
        if self.active is None and self.entries:
            self.active = self.entries[-1]

    def end_iteration(self, measure: Callable[[], Trace], *, seconds: float, stall_seconds: float, returns: Returns,
                      link: tuple[float | None, float | None] = (None, None)) -> None:
        """Correct the plan that was followed, or plan a sequence that has now been measured.

        measure: builds the trace of this iteration, which takes milliseconds; one that was followed has one already.
        link: seconds a byte that copies out and in have taken.
        """
        steps, self._steps = self._steps, []
        self.measuring = False
        self.allowance.run_seconds += seconds
        costs = self._drift.lasting(link)
        if self._struck is not None:
            self.active = self._struck
            self._judge(self._struck, inf, stall_seconds, returns)
            return
        entry = self.active
        if entry is not None and len(steps) == len(entry.steps):
            entry.last = Followed(entry.plan, seconds, stall_seconds, returns)
            entry.seconds.append(seconds)
            if self.switches.feedback and not (costs is not None and self._plan_anew(costs)):
                self._judge(entry, seconds, stall_seconds, returns)
            return
        known = self._find(steps)
        if known is None:
            known = self._measure(steps, measure, seconds)
            self.measuring = known is None
        # The latest sequence is tried first in the next iteration.
        self.active = known if known is not None else (self.entries[-1] if self.entries else None)

    def _judge(self, entry: Entry, seconds: float, stall_seconds: float, returns: Returns) -> None:
        """Let the policy see how its plan did: infinite seconds say that it failed, and it is not followed again."""
        late: dict[TensorId, float] = {}
        for (tensor_id, _), waited in returns.late.items():
            late[tensor_id] = late.get(tensor_id, 0.0) + waited
        observed = Observation(entry.trace, self.costs, self.limits, seconds, stall_seconds, late,
                               returns.paged_in_bytes, self.allowance.open)
        proposal, self._struck = NO_PLAN, None
        if self.switches.feedback:
            with self.allowance.planning():
                proposal = self.policy.feedback(entry.proposal, observed)
        if seconds == inf and proposal.plan is entry.plan:
            proposal = NO_PLAN
        if proposal is not entry.proposal:
            entry.adopt(proposal)

    def _plan_anew(self, costs: Costs) -> bool:
        """The link has changed: whether that makes plans differ so much that they were asked for again."""
        before, self.costs = self.costs, costs
        asked = False
        for entry in self.entries:
            if not entry.plan.evictions or not self.allowance.open:
                continue
            with self.allowance.planning():
                band = noise(entry.seconds)
                was, now = (predicted_seconds(entry.plan, entry.trace, each, self.limits) for each in (before, costs))
                if abs(now - was) > band * was:
                    proposal, asked = self.policy.plan(entry.trace, costs, self.limits), True
                    expected = proposal.plan.predicted_seconds
                    if expected is None or expected < now * (1.0 - band):
                        entry.adopt(proposal)
        return asked

    def _find(self, steps: list[Step]) -> Entry | None:
        return next((e for e in self.entries if e.steps == steps), None)

    def _measure(self, steps: list[Step], measure: Callable[[], Trace], seconds: float) -> Entry | None:
        key = hash(tuple(steps))
        traces = self._measured.get(key)
        if traces is None and self._recalled and (entry := self._recollect(steps, measure())) is not None:
            return entry
        if traces is None:
            self._measured[key] = []
            return None
        traces.append(replace(measure(), observed_seconds=seconds))
        if len(traces) < self.measured_iterations:
            return None
        trace = typical(self._measured.pop(key))
        if not self.switches.measured_times:
            trace = with_static_times(trace, [signature.flops for signature, _, _ in steps], peak_flops=self.peak_flops)
        entry = Entry(steps, trace)
        with self.allowance.planning(exempt=True):
            entry.adopt(self.policy.plan(entry.trace, self.costs, self.limits))
        self.entries.append(entry)
        return entry

    def recall(self, measured: Sequence[tuple[Trace, Proposal]]) -> None:
        """Traces and plans of an earlier run with the same policy, costs and limits: what proves to be one of these
        sequences when it has run once is neither measured nor planned again."""
        self._recalled = list(measured)

    def _recollect(self, steps: list[Step], trace: Trace) -> Entry | None:
        for number, (known, proposal) in enumerate(self._recalled):
            if known.same_calls(trace):
                del self._recalled[number]
                entry = Entry(steps, known)
                entry.adopt(proposal)
                self.entries.append(entry)
                return entry
        return None
