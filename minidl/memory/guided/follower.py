"""Follows plans: compares each call of the program with a measured trace, and returns the plan's actions after it.

The policy plans a sequence of calls when it has been seen twice: the first iteration warms up, the second is measured
(on the wall clock several are measured, for medians). While an iteration runs, each call is compared with the sequence
that is followed: op, shapes, fixed attributes and tensor ids, but not seeds or rates. At the first difference another
known sequence with the same beginning takes over; if there is none, the rest of the iteration runs on demand. If there
are too many sequences, the least recently followed are forgotten. The policy decides; this moves no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from minidl.memory.guided.drift import Drift, noise, predicted_seconds
from minidl.memory.guided.sequence import Actions, Followed, KnownSequence, Returns, Step
from minidl.memory.storage import Storage, TensorId
from minidl.memory.switches import Switches
from minidl.memory.tracker import LONGEST
from minidl.op import Signature
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Action, Proposal, ResidencyKey
from minidl.plan.policy import Observation, Policy, required_proposal
from minidl.plan.static import with_static_times
from minidl.plan.trace import Trace, typical
from minidl.planning.allowance import Allowance

MOST_KNOWN = 256  # sequences with a plan that are remembered
MOST_SEEN = 1024  # sequences without a plan yet that are remembered
MOST_CALLS = 1 << 18  # calls that the sequences of either kind may have in total: a call takes some 650 bytes

NOWHERE: Mapping[ResidencyKey, int] = {}


class PlanFollower:
    """The known sequences of calls with their plans, and the one that the current iteration follows.

    active     the sequence that this iteration follows; None if it differs from all known sequences
    diverged   how many iterations have differed from every known sequence
    measuring  True if the next iteration will be measured, provided that it repeats the last one
    forgotten  how many sequences were forgotten, as there were too many"""

    def __init__(self, policy: Policy, costs: Costs, limits: Limits, switches: Switches, *, peak_flops: float,
                 allowance: Allowance, measured_iterations: int = 1) -> None:
        """Follow the plans of ``policy``. measured_iterations: how many iterations are measured for one trace.
        peak_flops: the device's peak FLOPs per second, for plans without measured times."""
        self.policy = policy
        self.costs = costs
        self.limits = limits
        self.switches = switches
        self.peak_flops = peak_flops
        self.measured_iterations = measured_iterations
        self.entries: list[KnownSequence] = []
        self.active: KnownSequence | None = None
        self.diverged = self.forgotten = 0
        self.measuring = False
        self._iterations = 0
        self._steps: list[Step] = []
        self.allowance = allowance
        self._drift = Drift(costs)
        self._failed: KnownSequence | None = None  # the sequence whose plan was given up in this iteration
        self._recalled: list[tuple[Trace, Proposal]] = []
        self._measured: dict[int, list[Trace]] = {}  # traces so far of sequences that are not planned yet, by hash

    def follow(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...]) -> Actions | None:
        """Note the next call of the program. Returns the plan's actions after it, or None.
        read, made: the ids of the call's inputs and outputs. If the call differs from the sequence that is followed,
        another known sequence is followed, or none."""
        step = signature, read, made
        position = len(self._steps)
        if position > LONGEST:
            return None
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
        """The planned address of a storage's next residency; None if the plan has none."""
        return self.offsets.get((storage.tensor_id, storage.residency))

    @property
    def offsets(self) -> Mapping[ResidencyKey, int]:
        """The addresses of the plan that is followed, by (tensor id, residency number); empty without a plan."""
        return self.active.plan.offsets if self.active is not None else NOWHERE

    @property
    def position(self) -> int:
        """The number of the next call in the current iteration, from 0."""
        return len(self._steps)

    @property
    def plans_ahead(self) -> bool:
        """True if a plan is followed that evicts or moves tensors."""
        return self.active is not None and bool(self.active.actions)

    @property
    def latest(self) -> KnownSequence | None:
        """The known sequence that the last iteration followed to its end; None if there is none."""
        return self.active if self.active is not None and self.active.followed == self._iterations else None

    @property
    def settling(self) -> bool:
        """True if the plan was changed just before this iteration, so that its time counts neither for old nor new."""
        return self.active is not None and self.active.settling > 0

    def algorithm(self, signature: Signature) -> str | None:
        """The name of the planned algorithm of the next call, if that call has the planned signature; else None."""
        entry, position = self.active, len(self._steps)
        if entry is None or position >= len(entry.steps) or entry.steps[position][0] is not signature:
            return None
        return entry.plan.algorithms.get(position)

    def upcoming(self) -> Mapping[TensorId, Action]:
        """The plan's evictions after the next call, provided that it is the expected call; tensor id -> action."""
        actions = self.active.actions.get(len(self._steps)) if self.active is not None else None
        return actions.evictions if actions is not None else {}

    def _sibling(self, prefix: int, step: Step) -> KnownSequence | None:
        """A known sequence that begins with the calls of this iteration so far and then ``step``; None if none does.
        prefix: the hash of the calls so far."""
        wanted = hash((prefix, step))
        position = len(self._steps)
        return next((e for e in self.entries if position < len(e.prefixes) and e.prefixes[position] == wanted), None)

    @property
    def iterations_to_follow(self) -> int:
        """The number of the first iteration that follows a plan from beginning to end.
        Iteration 1 creates gradients, iteration 2 shows that the calls repeat, then ``measured_iterations`` are
        measured. If plans of an earlier run were loaded, iteration 2 follows one."""
        return 2 if self._recalled else 3 + self.measured_iterations

    @property
    def observes(self) -> bool:
        """True if the policy will be told the times of this iteration."""
        entry = self.active
        return self.measuring or self.plans_ahead or (entry is not None and entry.proposal.notes is not None)

    def abandon_plan(self) -> bool:
        """Stop following the plan, now and later, because an allocation has failed. False if none was followed."""
        entry = self.active
        if entry is None or not entry.actions:
            return False
        self._failed, self.active = entry, None
        return True

    def abandon_iteration(self) -> None:
        """End an iteration that failed, or was too long for the log: its calls and times are ignored."""
        self._steps = []
        if self._failed is not None:
            self._judge(self._failed, inf, 0.0, Returns())
        if self.active is None and self.entries:
            self.active = self.entries[-1]

    def end_iteration(self, measure: Callable[[], Trace], *, seconds: float, stall_seconds: float, returns: Returns,
                      link: tuple[float | None, float | None] = (None, None)) -> None:
        """End an iteration: let the policy correct the plan that was followed, or plan a sequence measured by now.
        measure: builds the trace of this iteration, which takes milliseconds; a followed sequence has one already.
        seconds, stall_seconds: of this iteration. returns: how evicted tensors came back. link: measured seconds per
        byte of copies out and in."""
        steps, self._steps = self._steps, []
        self._iterations += 1
        self.measuring = False
        self.allowance.run_seconds += seconds
        if self._failed is not None:
            self.active = self._failed
            self._judge(self._failed, inf, stall_seconds, returns)
            return
        entry = self.active
        if entry is not None and len(steps) == len(entry.steps):
            entry.last = Followed(entry.plan, seconds, stall_seconds, returns, entry.proposal.remark)
            entry.followed = self._iterations
            if entry.settling:
                entry.settling -= 1
                entry.unseen += 1
                return
            entry.seconds.append(seconds)
            costs = self._drift.lasting(link)
            if self.switches.feedback and not (costs is not None and self._plan_anew(costs)):
                self._judge(entry, seconds, stall_seconds, returns)
            return
        known = self._find(steps)
        if known is None:
            known = self._measure(steps, measure, seconds)
            self.measuring = known is None
        if known is not None:
            known.followed = self._iterations
        # The latest sequence is tried first in the next iteration.
        self.active = known if known is not None else (self.entries[-1] if self.entries else None)

    def _judge(self, entry: KnownSequence, seconds: float, stall_seconds: float, returns: Returns) -> None:
        """Tell the policy the times of an iteration under its plan, and adopt the plan that it answers with.
        seconds: infinite if the plan failed; then the same plan is not adopted again."""
        late: dict[TensorId, float] = {}
        for (tensor_id, _), waited in returns.late.items():
            late[tensor_id] = late.get(tensor_id, 0.0) + waited
        observed = Observation(entry.trace, self.costs, self.limits, seconds, stall_seconds, late,
                               returns.paged_in_bytes, self.allowance.open, entry.unseen)
        proposal, self._failed, entry.unseen = NO_PLAN, None, 0
        if self.switches.feedback:
            with self.allowance.planning():
                proposal = required_proposal(self.policy, "feedback", self.policy.feedback(entry.proposal, observed))
        if seconds == inf and proposal.plan is entry.plan:
            proposal = NO_PLAN
        if proposal is not entry.proposal:
            entry.adopt(proposal)

    def _plan_anew(self, costs: Costs) -> bool:
        """Ask the policy for new plans under new copy costs, if they change an iteration's predicted time beyond noise.
        True if it was asked for any."""
        before, self.costs = self.costs, costs
        asked = False
        for entry in self.entries:
            if not entry.plan.evictions or not self.allowance.open:
                continue
            with self.allowance.planning():
                band = noise(entry.seconds)
                was, now = (predicted_seconds(entry.plan, entry.trace, each, self.limits) for each in (before, costs))
                if abs(now - was) > band * was:
                    proposal, asked = _planned(self.policy, entry.trace, self.costs, self.limits), True
                    expected = proposal.plan.predicted_seconds
                    if expected is None or expected < now * (1.0 - band):
                        entry.adopt(proposal)
        return asked

    def _find(self, steps: list[Step]) -> KnownSequence | None:
        return next((e for e in self.entries if e.steps == steps), None)

    def _measure(self, steps: list[Step], measure: Callable[[], Trace], seconds: float) -> KnownSequence | None:
        key = hash(tuple(steps))
        traces = self._measured.pop(key, None)  # put back at the end: the order is that of the latest iterations
        if traces is None and self._recalled and (entry := self._recollect(steps, measure())) is not None:
            return entry
        if traces is None:
            self._seen(key, [])
            return None
        traces.append(replace(measure(), observed_seconds=seconds))
        if len(traces) < self.measured_iterations:
            self._seen(key, traces)
            return None
        trace = typical(traces)
        if not self.switches.measured_times:
            trace = with_static_times(trace, [signature.flops for signature, _, _ in steps], peak_flops=self.peak_flops)
        entry = KnownSequence(steps, trace)
        with self.allowance.planning(exempt=True):
            entry.adopt(_planned(self.policy, entry.trace, self.costs, self.limits))
        self._know(entry)
        return entry

    def _seen(self, key: int, traces: list[Trace]) -> None:
        """Remember a sequence without a plan, by its hash, with its traces so far. Too many: forget the oldest."""
        seen = self._measured
        seen[key] = traces
        calls = sum(len(trace.calls) for each in seen.values() for trace in each)
        while len(seen) > MOST_SEEN or len(seen) > 1 and calls > MOST_CALLS:
            calls -= sum(len(trace.calls) for trace in seen.pop(next(iter(seen))))
            self.forgotten += 1

    def _know(self, entry: KnownSequence) -> None:
        """Remember a sequence with its plan. If there are too many, forget those that were followed longest ago."""
        entry.followed = self._iterations
        self.entries.append(entry)
        calls = sum(len(each.steps) for each in self.entries)
        while len(self.entries) > MOST_KNOWN or len(self.entries) > 1 and calls > MOST_CALLS:
            oldest = min(self.entries[:-1], key=lambda each: each.followed)
            self.entries.remove(oldest)
            calls -= len(oldest.steps)
            self.forgotten += 1

    def signatures(self) -> set[Signature]:
        """The signatures of all calls in known sequences."""
        return {signature for entry in self.entries for signature, _, _ in entry.steps}

    def recall(self, measured: Sequence[tuple[Trace, Proposal]]) -> None:
        """Load traces and plans of an earlier run with the same policy, costs and limits.
        A sequence of calls that equals a loaded trace is neither measured nor planned again."""
        self._recalled = list(measured)

    def _recollect(self, steps: list[Step], trace: Trace) -> KnownSequence | None:
        for number, (known, proposal) in enumerate(self._recalled):
            if known.same_calls(trace):
                del self._recalled[number]
                entry = KnownSequence(steps, known)
                entry.adopt(proposal)
                self._know(entry)
                return entry
        return None


def _planned(policy: Policy, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
    return required_proposal(policy, "plan", policy.plan(trace, costs, limits))
