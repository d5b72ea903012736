"""All steps that an execution of a small trace may contain: its calls, and before each call the replays it may need.

They follow from the trace alone, not from a budget. The integer program has variables for each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from minidl.planning.problem import Problem


@dataclass(frozen=True)
class ExecutionStep:
    """One place in the order of execution: it executes ``call``, in its own place (``group`` equals ``call``), or again
    as a replay just before the later call ``group``. index: the number of the place."""

    index: int
    group: int
    call: int


@dataclass
class ExecutionOrder:
    """The steps of a trace, and when each tensor may be absent from the device.

    inputs, outputs   per call: tensors (each input once)
    dies              per tensor: the call after which it is freed; the number of calls if none
    gap_at            (tensor, call) -> the gap that the tensor is in before that call
    steps, first      all steps; per call of the program: the index of the first step that serves it
    """

    facts: Problem
    calls: int
    inputs: list[list[int]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    dies: list[int] = field(default_factory=list)
    gap_at: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: list[ExecutionStep] = field(default_factory=list)
    first: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, facts: Problem) -> ExecutionOrder:
        """Return the execution order of a trace."""
        order = cls(facts, len(facts.in_ptr) - 1)
        for k in range(order.calls):
            order.inputs.append(facts.in_idx[facts.in_ptr[k]:facts.in_ptr[k + 1]].tolist())
            order.outputs.append(facts.out_idx[facts.out_ptr[k]:facts.out_ptr[k + 1]].tolist())
        order.dies = [order.calls] * len(facts.size)
        for k in range(order.calls):
            for tensor in facts.free_idx[facts.free_ptr[k]:facts.free_ptr[k + 1]]:
                order.dies[tensor] = k
        for gap, tensor in enumerate(facts.gap_tensor):
            for k in range(facts.gap_call[gap] + 1, facts.gap_next[gap] + 1):
                order.gap_at[int(tensor), k] = gap
        for k in range(order.calls):
            order.first.append(len(order.steps))
            for call in [*order.may_be_replayed(k), k]:
                order.steps.append(ExecutionStep(len(order.steps), k, call))
        return order

    def absent(self, tensor: int, k: int) -> bool:
        """Return True if a call before call ``k`` has freed tensor number ``tensor``: the program needs it no more."""
        return self.dies[tensor] < k

    def may_miss(self, tensor: int, k: int) -> bool:
        """Return True if call k, or a replay before it, may have to recompute the tensor."""
        gap = self.gap_at.get((tensor, k))
        return self.absent(tensor, k) if gap is None else bool(self.facts.can_drop[gap])

    def may_be_replayed(self, k: int) -> list[int]:
        """Return the earlier calls that some choice of modes replays before call k."""
        wanted = [t for t in self.inputs[k] if self.may_miss(t, k)]
        found: set[int] = set()
        while wanted:
            call = int(self.facts.produced[wanted.pop()])
            if call >= 0 and call not in found:
                found.add(call)
                wanted += [t for t in self.inputs[call] if self.may_miss(t, k)]
        return sorted(found)

    @property
    def longest(self) -> float:
        """Seconds that no sensible plan exceeds: every step is executed, and all copies run one after another."""
        facts = self.facts
        steps = sum(facts.algorithm_seconds[facts.algorithm_ptr[s.call + 1] - 1] for s in self.steps)
        copies = (facts.out_seconds + facts.in_seconds)[facts.gap_tensor]
        return float(steps + copies[np.isfinite(copies)].sum())

    @property
    def size(self) -> int:
        """The number of pairs of a gap and a step in it; the integer program has about twice as many binary variables.
        """
        ends = [*self.first[1:], len(self.steps)]
        return int(sum(ends[b] - self.first[a + 1] for a, b in
                       zip(self.facts.gap_call, self.facts.gap_next, strict=True)))
