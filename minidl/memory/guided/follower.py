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

from minidl.memory.guided.ended import Ended, slowest, united
from minidl.memory.guided.planner import Planner
from minidl.memory.guided.sequence import Actions, Followed, KnownSequence, Returns, Step
from minidl.memory.storage import Storage, TensorId
from minidl.memory.switches import Switches
from minidl.memory.tracker import LONGEST
from minidl.op import Signature
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Proposal, ResidencyKey
from minidl.plan.policy import Policy
from minidl.plan.static import with_static_times
from minidl.plan.trace import Trace, typical
from minidl.planning.allowance import Allowance
from minidl.ranks.consensus import ALONE, Alone

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
                 allowance: Allowance, measured_iterations: int = 1, consensus: Alone = ALONE) -> None:
        """Follow the plans of ``policy``. measured_iterations: how many iterations are measured for one trace.
        peak_flops: the device's peak FLOPs per second, for plans without measured times. consensus: the agreement of
        ranks, of which rank 0 makes the plans."""
        self.policy = policy
        self.switches = switches
        self.peak_flops = peak_flops
        self.measured_iterations = measured_iterations
        self.entries: list[KnownSequence] = []
        self.planner = Planner(policy, costs, limits, self.entries, corrects=switches.feedback, allowance=allowance,
                               consensus=consensus)
        self.active: KnownSequence | None = None
        self.diverged = self.forgotten = 0
        self.measuring = False
        self._iterations = 0
        self._steps: list[Step] = []
        self.consensus = consensus
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
    def allowance(self) -> Allowance:
        """The limit on planning time."""
        return self.planner.allowance

    @property
    def costs(self) -> Costs:
        """The costs of copies that plans assume at present."""
        return self.planner.costs

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
        Iteration 1 creates gradients, iteration 2 is the first with the calls that repeat, then ``measured_iterations``
        are measured. If plans of an earlier run were loaded, iteration 2 follows one."""
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
        if self._failed is not None and self.consensus.ranks is None:
            self.active = self._failed
            self.planner.judge(self._failed, inf)
        self._failed = None
        if self.active is None and self.entries:
            self.active = self.entries[-1]

    def end_iteration(self, measure: Callable[[], Trace], *, seconds: float, stall_seconds: float, returns: Returns,
                      link: tuple[float | None, float | None] = (None, None)) -> None:
        """End an iteration: let the policy correct the plan that was followed, or plan a sequence measured by now.
        measure: builds the trace of this iteration, which takes milliseconds; a followed sequence has one already.
        seconds, stall_seconds: of this iteration. returns: how evicted tensors came back. link: measured seconds per
        byte of copies out and in. Of ranks, all call this, and draw the same conclusions."""
        steps, self._steps = self._steps, []
        self._iterations += 1
        self.measuring = False
        self.allowance.run_seconds += seconds
        entry, gave_up = self._failed or self.active, self._failed is not None
        if entry is not None and not gave_up and len(steps) != len(entry.steps):
            entry = None
        known = self.entries.index(entry) if entry is not None else -1
        calls = self.consensus.digest((s.op.name, *ids) for s, *ids in steps) if entry is None else ""
        ended = united(self.consensus.reports(Ended(known, calls, gave_up, seconds, stall_seconds, returns, link,
                                                    self.planner.limits, self.planner.costs)))
        if ended is None:  # the ranks made different calls, or this iteration was this rank's own
            self._failed, self.active = None, self.entries[-1] if self.entries else None
            return
        self._failed = None
        self.planner.agreed(ended)
        if ended.gave_up:
            self.active = self.entries[known]
            self.planner.judge(self.active, inf, ended.stall_seconds, ended.returns)
            return
        if entry is not None:
            entry.last = Followed(entry.plan, seconds, stall_seconds, returns, entry.proposal.remark)
            entry.followed = self._iterations
            if entry.settling:
                entry.settling -= 1
                entry.unseen += 1
                return
            entry.seconds.append(ended.seconds)
            self.planner.correct(entry, ended)
            return
        found = self._find(steps)
        if found is None:
            found = self._measure(steps, measure, ended)
            self.measuring = found is None
        if found is not None:
            found.followed = self._iterations
        # The latest sequence is tried first in the next iteration.
        self.active = found if found is not None else (self.entries[-1] if self.entries else None)

    def _find(self, steps: list[Step]) -> KnownSequence | None:
        return next((e for e in self.entries if e.steps == steps), None)

    def _measure(self, steps: list[Step], measure: Callable[[], Trace], ended: Ended) -> KnownSequence | None:
        key = hash(tuple(steps))
        traces = self._measured.pop(key, None)  # put back at the end: the order is that of the latest iterations
        if traces is None and (entry := self._recollect(steps, measure)) is not None:
            return entry
        if traces is None:
            self._seen(key, [])
            return None
        traces.append(replace(measure(), observed_seconds=ended.seconds))
        if len(traces) < self.measured_iterations:
            self._seen(key, traces)
            return None
        trace = typical(traces)
        trace = slowest(trace, self.consensus.reports([call.seconds for call in trace.calls]))
        if not self.switches.measured_times:
            trace = with_static_times(trace, [signature.flops for signature, _, _ in steps], peak_flops=self.peak_flops)

        self._know(entry := KnownSequence(steps, trace))
        self.planner.plan_latest()
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

    def _recollect(self, steps: list[Step], measure: Callable[[], Trace]) -> KnownSequence | None:
        def same() -> int:
            trace = measure() if self._recalled else None
            return next((number for number, (known, _) in enumerate(self._recalled)
                         if trace is not None and known.same_calls(trace)), -1)

        number = self.consensus.decide(same)
        if number < 0:
            return None
        known, proposal = self._recalled.pop(number)
        entry = KnownSequence(steps, known)
        entry.adopt(proposal)
        self._know(entry)
        self.planner.tell_plans()
        return entry
