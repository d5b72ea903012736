"""Guided execution: compares each call with a measured trace, and says what its plan wants done after it.

A sequence of calls is planned when it has been seen twice: the first time warms up, the second is measured. While an
iteration runs, each call is compared with the entry being followed (op, shapes, fixed attributes and tensor ids; not
seeds or rates). At the first difference another known sequence with the same beginning takes over; if there is none,
the rest of the iteration runs in passive mode. Decides nothing itself, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minidl.memory.plan import Action, Costs, Limits, Observation, Plan, Policy
from minidl.memory.storage import TensorId
from minidl.memory.trace import Trace
from minidl.op import Signature

Step = tuple[Signature, tuple[TensorId, ...], tuple[TensorId, ...]]
Actions = tuple[dict[TensorId, Action], tuple[TensorId, ...]]  # evictions and prefetches after one call


class Entry:
    """One known sequence of calls with its plan. ``prefixes[i]`` is a hash of the first i calls."""

    def __init__(self, steps: list[Step], trace: Trace) -> None:
        self.steps = steps
        self.trace = trace
        self.plan = Plan()
        self.actions: dict[int, Actions] = {}
        self.prefixes = [0]
        for step in steps:
            self.prefixes.append(hash((self.prefixes[-1], step)))

    def adopt(self, plan: Plan) -> None:
        """Follow a plan from the next iteration on."""
        self.plan = plan
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

    def __init__(self, policy: Policy, costs: Costs, limits: Limits) -> None:
        self.policy = policy
        self.costs = costs
        self.limits = limits
        self.entries: list[Entry] = []
        self.active: Entry | None = None
        self.diverged = 0  # iterations that left every known sequence
        self._steps: list[Step] = []
        self._seen_once: set[int] = set()

    def follow(self, signature: Signature, inputs: Sequence[Any], outputs: Sequence[Any]) -> Actions | None:
        """Note the next call; what is to be done after it, if it is the one that was expected."""
        step = (signature, tuple([s.base.tensor_id for s in inputs]), tuple([s.tensor_id for s in outputs]))
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

    def upcoming(self) -> dict[TensorId, Action]:
        """What is to be evicted after the next call, if it is the one that is expected."""
        actions = self.active.actions.get(len(self._steps)) if self.active is not None else None
        return actions[0] if actions is not None else {}

    def _sibling(self, prefix: int, step: Step) -> Entry | None:
        """Another known sequence that begins like this iteration, this call included."""
        wanted = hash((prefix, step))
        position = len(self._steps)
        return next((e for e in self.entries if position < len(e.prefixes) and e.prefixes[position] == wanted), None)

    def abandon_iteration(self) -> None:
        """The iteration failed: what was seen of it says nothing, and the next one starts from the beginning."""
        self._steps = []
        if self.active is None and self.entries:
            self.active = self.entries[-1]

    def end_iteration(self, measure: Callable[[], Trace], *, seconds: float, stall_seconds: float,
                      late: Mapping[TensorId, float], paged_in_bytes: int) -> None:
        """Correct the plan that was followed, or plan a sequence that has now been measured.

        measure: builds the trace of this iteration, which takes milliseconds; one that was followed has one already.
        """
        steps, self._steps = self._steps, []
        entry = self.active
        if entry is not None and len(steps) == len(entry.steps):
            observed = Observation(entry.trace, seconds, stall_seconds, late, paged_in_bytes)
            plan = self.policy.feedback(entry.plan, observed)
            if plan is not entry.plan:
                entry.adopt(plan)
            return
        known = self._find(steps)
        if known is None:
            known = self._measure(steps, measure)
        # The latest sequence is tried first in the next iteration.
        self.active = known if known is not None else (self.entries[-1] if self.entries else None)

    def _find(self, steps: list[Step]) -> Entry | None:
        return next((e for e in self.entries if e.steps == steps), None)

    def _measure(self, steps: list[Step], measure: Callable[[], Trace]) -> Entry | None:
        key = hash(tuple(steps))
        if key not in self._seen_once:
            self._seen_once.add(key)
            return None
        entry = Entry(steps, measure())
        entry.adopt(self.policy.plan(entry.trace, self.costs, self.limits))
        self.entries.append(entry)
        return entry
