"""Guided execution: compares each call with a measured trace, and says what its plan wants done after it.

A sequence of calls is planned when it has been seen twice: the first time warms up, the second is measured (where time
is not modelled it is measured several times, for the medians). While an iteration runs, each call is compared with the
entry being followed (op, shapes, fixed attributes and tensor ids; not seeds or rates). At the first difference another
known sequence with the same beginning takes over; if there is none, the rest of the iteration runs in passive mode.
The sequences that were followed least recently are forgotten when they become too many.
Decides nothing itself, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from minidl.memory.storage import Storage, TensorId
from minidl.memory.switches import Switches
from minidl.memory.tracker import LONGEST
from minidl.op import Signature
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, AccessKey, Action, Plan, Proposal, ResidencyKey
from minidl.plan.policy import Observation, Policy
from minidl.plan.static import with_static_times
from minidl.plan.trace import Trace, typical

DRIFT = 1.1  # how far a copy's time may be from what plans were made for
DRIFT_ITERATIONS = 3  # in a row, before they are made anew: a single one may have been disturbed

MOST_KNOWN = 256  # sequences that are remembered, ...
MOST_SEEN = 1024  # and that were seen and not yet planned
MOST_CALLS = 1 << 18  # that either have in all, if they are several: some 650 bytes each

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
        self.actions: dict[int, Actions] = {}
        self.followed = 0  # the iteration that was like it latest
        self.prefixes = [0]
        for step in steps:
            self.prefixes.append(hash((self.prefixes[-1], step)))

    def adopt(self, proposal: Proposal) -> None:
        """Follow a plan from the next iteration on."""
        self.proposal = proposal
        self.plan = plan = proposal.plan
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
                 measured_iterations: int = 1) -> None:
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
        self.forgotten = 0  # sequences, known or seen, that had to make room for others
        self._iterations = 0
        self._steps: list[Step] = []
        self._drifts: list[Costs] = []  # what the link has cost in the latest iterations, while that is not as planned
        self._recalled: list[tuple[Trace, Proposal]] = []
        self._measured: dict[int, list[Trace]] = {}  # of sequences that were seen, but not often enough, by their hash

    def follow(self, signature: Signature, read: tuple[TensorId, ...], made: tuple[TensorId, ...]) -> Actions | None:
        """Note the next call; what is to be done after it, if it is the one that was expected."""
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
        """Where the plan wants the next bytes of a storage."""
        return self.offsets.get((storage.tensor_id, storage.residency))

    @property
    def offsets(self) -> Mapping[ResidencyKey, int]:
        """Where the plan that is followed wants bytes to go; empty if it does not say, or none is followed."""
        return self.active.plan.offsets if self.active is not None else NOWHERE

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
    def iterations_to_follow(self) -> int:
        """How many iterations it takes until one of them follows a plan to its end: the first makes the gradients, one
        shows what comes again, some are measured; of a sequence with a plan from before, the second follows it."""
        return 2 if self._recalled else 3 + self.measured_iterations

    @property
    def observes(self) -> bool:
        """Whether the policy will be told how this iteration went."""
        return self.active is not None and bool(self.active.actions)

    def abandon_iteration(self) -> None:
        """The iteration failed, or was too long to be noted: what was seen of it says nothing, and the next one starts
        from the beginning."""
        self._steps = []
        if self.active is None and self.entries:
            self.active = self.entries[-1]

    def end_iteration(self, measure: Callable[[], Trace], *, seconds: float, stall_seconds: float, returns: Returns,
                      link: tuple[float | None, float | None] = (None, None)) -> None:
        """Correct the plan that was followed, or plan a sequence that has now been measured.

        measure: builds the trace of this iteration, which takes milliseconds; one that was followed has one already.
        link: seconds a byte that copies out and in have taken.
        """
        steps, self._steps = self._steps, []
        self._iterations += 1
        self.measuring = False
        if self.switches.feedback and self._drifted(link):
            for each in self.entries:
                each.adopt(self.policy.plan(each.trace, self.costs, self.limits))
            self.active = self._find(steps) or (self.entries[-1] if self.entries else None)
            return
        entry = self.active
        if entry is not None and len(steps) == len(entry.steps):
            entry.last = Followed(entry.plan, seconds, stall_seconds, returns)
            entry.followed = self._iterations
            if self.switches.feedback:
                late: dict[TensorId, float] = {}
                for (tensor_id, _), waited in returns.late.items():
                    late[tensor_id] = late.get(tensor_id, 0.0) + waited
                observed = Observation(entry.trace, self.costs, self.limits, seconds, stall_seconds, late,
                                       returns.paged_in_bytes)
                proposal = self.policy.feedback(entry.proposal, observed)
                if proposal is not entry.proposal:
                    entry.adopt(proposal)
            return
        known = self._find(steps)
        if known is None:
            known = self._measure(steps, measure)
            self.measuring = known is None
        if known is not None:
            known.followed = self._iterations
        # The latest sequence is tried first in the next iteration.
        self.active = known if known is not None else (self.entries[-1] if self.entries else None)

    def _drifted(self, link: tuple[float | None, float | None]) -> bool:
        """Whether copies take so much longer, or shorter, than plans were made for that these are to be made anew."""
        costs = self.costs
        seen = replace(costs, out_seconds_per_byte=link[0] or costs.out_seconds_per_byte,
                       in_seconds_per_byte=link[1] or costs.in_seconds_per_byte)
        ratios = (seen.out_seconds_per_byte / costs.out_seconds_per_byte,
                  seen.in_seconds_per_byte / costs.in_seconds_per_byte)
        if all(1.0 / DRIFT <= ratio <= DRIFT for ratio in ratios):
            self._drifts.clear()
            return False
        self._drifts.append(seen)
        if len(self._drifts) < DRIFT_ITERATIONS:
            return False
        self.costs = replace(costs, out_seconds_per_byte=median(c.out_seconds_per_byte for c in self._drifts),
                             in_seconds_per_byte=median(c.in_seconds_per_byte for c in self._drifts))
        self._drifts.clear()
        return True

    def _find(self, steps: list[Step]) -> Entry | None:
        return next((e for e in self.entries if e.steps == steps), None)

    def _measure(self, steps: list[Step], measure: Callable[[], Trace]) -> Entry | None:
        key = hash(tuple(steps))
        traces = self._measured.pop(key, None)  # and back at the end: the first was seen longest ago
        if traces is None and self._recalled and (entry := self._recollect(steps, measure())) is not None:
            return entry
        if traces is None:
            self._seen(key, [])
            return None
        traces.append(measure())
        if len(traces) < self.measured_iterations:
            self._seen(key, traces)
            return None
        trace = typical(traces)
        if not self.switches.measured_times:
            trace = with_static_times(trace, [signature.flops for signature, _, _ in steps], peak_flops=self.peak_flops)
        entry = Entry(steps, trace)
        entry.adopt(self.policy.plan(entry.trace, self.costs, self.limits))
        self._know(entry)
        return entry

    def _seen(self, key: int, traces: list[Trace]) -> None:
        """Remember a sequence that is not planned yet; those seen longest ago are forgotten if they are too many."""
        seen = self._measured
        seen[key] = traces
        calls = sum(len(trace.calls) for each in seen.values() for trace in each)
        while len(seen) > MOST_SEEN or len(seen) > 1 and calls > MOST_CALLS:
            calls -= sum(len(trace.calls) for trace in seen.pop(next(iter(seen))))
            self.forgotten += 1

    def _know(self, entry: Entry) -> None:
        """Remember a sequence with its plan; those followed longest ago are forgotten if they are too many."""
        entry.followed = self._iterations
        self.entries.append(entry)
        calls = sum(len(each.steps) for each in self.entries)
        while len(self.entries) > MOST_KNOWN or len(self.entries) > 1 and calls > MOST_CALLS:
            oldest = min(self.entries[:-1], key=lambda each: each.followed)
            self.entries.remove(oldest)
            calls -= len(oldest.steps)
            self.forgotten += 1

    def signatures(self) -> set[Signature]:
        """What the known sequences call."""
        return {signature for entry in self.entries for signature, _, _ in entry.steps}

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
                self._know(entry)
                return entry
        return None
