"""A trace seen as a network: where the backward pass begins, which values it reads, and which calls read them.

The literature decides about the layers of a given graph. Here a layer is a call of the forward pass, and a feature map
a value that the forward pass computes and the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from minidl.plan.costs import Costs
from minidl.plan.plan import AccessKey
from minidl.plan.trace import TensorId, Trace
from minidl.planning.problem import Problem, problem

CONVOLUTIONS = ("conv2d", "conv2d_relu", "conv2d_dgrad")  # dgrad in the forward pass is a transposed convolution
PRODUCTS = ("linear", "matmul")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "sigmoid", "tanh")
LOSSES = ("cross_entropy", "softmax")
JOINS = ("add", "concat", "batch_norm_add_relu")
SOURCES = ("upload", "full")


class FeatureMap(NamedTuple):
    """A value that the forward pass computes and the backward pass reads.

    gap       number of its gap in ``Problem``: from its last use in the forward pass to its first in the backward pass
    made      the call that computes it
    readers   the forward calls that read it
    last      its last use in the forward pass: a reader, or the call that computes it
    back      the first call of the backward pass that reads it
    can_drop  True if it can be recomputed for that call
    """

    gap: int
    tensor_id: TensorId
    nbytes: int
    made: int
    readers: tuple[int, ...]
    last: int
    back: int
    can_drop: bool


@dataclass(frozen=True)
class IterationNetwork:
    """One iteration as a network. Feature maps below a 10,000th of all tensors' bytes are left out."""

    trace: Trace
    facts: Problem

    @classmethod
    def of(cls, trace: Trace, costs: Costs) -> IterationNetwork:
        """Return the network of a trace, in time linear in the trace except for sorting."""
        return cls(trace, problem(trace, costs, lasting=False))

    @cached_property
    def turn(self) -> int:
        """The first call of the backward pass; the number of calls if there is none."""
        gradients = (k for k, call in enumerate(self.trace.calls)
                     if call.op.endswith(("_grad", "_grad_reduce", "_wgrad")))
        return next(gradients, len(self.trace.calls))

    @cached_property
    def starts(self) -> list[float]:
        """The start of each call in seconds if nothing waits, and the end of the last call."""
        return list(accumulate((call.seconds for call in self.trace.calls), initial=0.0))

    @cached_property
    def made(self) -> dict[TensorId, int]:
        """Map each tensor that the forward pass computes to the call that computes it."""
        return {t: k for k, call in enumerate(self.trace.calls[:self.turn]) for t in call.outputs}

    @cached_property
    def maps(self) -> tuple[FeatureMap, ...]:
        """All feature maps, in the order of their last uses in the forward pass."""
        facts, found = self.facts, []
        for gap, (last, back, n) in enumerate(zip(facts.gap_call.tolist(), facts.gap_next.tolist(),
                                                  facts.gap_tensor.tolist(), strict=True)):
            if last < self.turn <= back:
                tensor_id, made = int(facts.ids[n]), int(facts.produced[n])
                readers = tuple(k for k in self.trace.uses[tensor_id] if made < k < self.turn)
                found.append(FeatureMap(gap, tensor_id, int(facts.size[n]), made, readers, last, back,
                                        bool(facts.can_drop[gap])))
        return tuple(found)

    @property
    def convolutions(self) -> Iterator[int]:
        """The numbers of the forward pass's calls that are convolutions."""
        return (k for k in range(self.turn) if self.op(k) in CONVOLUTIONS)

    def op(self, call: int) -> str:
        """Return the name of a call's operation."""
        return self.trace.calls[call].op

    def key(self, tensor_id: TensorId, call: int) -> AccessKey:
        """Return the key of the access that a call makes to a tensor."""
        return tensor_id, self.trace.uses[tensor_id].index(call) + 1

    def access_of(self, call: int) -> AccessKey:
        """Return the key of a call's access to its first operand."""
        of = self.trace.calls[call]
        return self.key((*of.inputs, *of.outputs)[0], call)

    @cached_property
    def learned(self) -> frozenset[TensorId]:
        """The values that the forward pass computes, directly or not, from parameters; all its values if it reads none.
        Values computed from data alone, such as a mask, are left out."""
        found = {t.tensor_id for t in self.trace.tensors.values() if t.persistent}
        for call in self.trace.calls[:self.turn]:
            if not found.isdisjoint(call.inputs):
                found.update(call.outputs)
        return frozenset(found.intersection(self.made) or self.made)

    def articulations(self, candidates: frozenset[TensorId]) -> list[TensorId]:
        """Return the candidates that cut the forward pass in two, in program order.
        After such a value, no earlier candidate is read. Values made from data alone do not count."""
        candidates &= self.learned
        last = {t: max((k for k in self.trace.uses[t] if k < self.turn), default=-1) for t in candidates}
        found: list[TensorId] = []
        crossing: set[TensorId] = set()
        for k, call in enumerate(self.trace.calls[:self.turn]):
            crossing = {t for t in crossing if last[t] > k}
            crossing.update(t for t in call.outputs if t in candidates and last[t] > k)
            fresh = [t for t in call.outputs if t in crossing]
            if fresh and len(crossing) == 1:
                found += fresh
        return found
