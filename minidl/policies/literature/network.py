"""A trace as a network: where the backward pass begins, which values it keeps, and which calls read them.

The systems of the literature decide on layers, of a graph that they are given. Here a layer is a call of the forward
pass, and its input a feature map: what the forward pass made and the backward pass reads again. Knows no policy.
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

CONVOLUTIONS = ("conv2d", "conv2d_relu", "conv2d_dgrad")  # the last one is a transposed one, where it is forward
PRODUCTS = ("linear", "matmul")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "sigmoid", "tanh")
LOSSES = ("cross_entropy", "softmax")
JOINS = ("add", "concat", "batch_norm_add_relu")
SOURCES = ("upload", "full")


class FeatureMap(NamedTuple):
    """A value that the forward pass makes and the backward pass reads.

    gap       of the ``Problem``: from its last use forward to its first one backward
    made      the call that makes it
    readers   the forward calls that read it; the last one is ``last``
    last      its last use forward: a reader, or the call that makes it
    back      the first call that reads it backward
    can_drop  whether it could be made again for that
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
class Network:
    """One iteration as a network. Tensors of less than a 10,000th of all bytes are not among the feature maps."""

    trace: Trace
    facts: Problem

    @classmethod
    def of(cls, trace: Trace, costs: Costs) -> Network:
        """In time linear in the trace, but for sorting."""
        return cls(trace, problem(trace, costs, lasting=False))

    @cached_property
    def turn(self) -> int:
        """The first call of the backward pass; the number of calls if there is none."""
        gradients = (k for k, call in enumerate(self.trace.calls)
                     if call.op.endswith(("_grad", "_grad_reduce", "_wgrad")))
        return next(gradients, len(self.trace.calls))

    @cached_property
    def starts(self) -> list[float]:
        """Per call: its start in seconds, were nothing to wait; and the end of the last."""
        return list(accumulate((call.seconds for call in self.trace.calls), initial=0.0))

    @cached_property
    def made(self) -> dict[TensorId, int]:
        """Tensor of the forward pass -> the call that makes it."""
        return {t: k for k, call in enumerate(self.trace.calls[:self.turn]) for t in call.outputs}

    @cached_property
    def maps(self) -> tuple[FeatureMap, ...]:
        """All feature maps, in the order of their last uses forward."""
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
        """The convolutions of the forward pass, by their calls."""
        return (k for k in range(self.turn) if self.op(k) in CONVOLUTIONS)

    def op(self, call: int) -> str:
        """The operation of a call."""
        return self.trace.calls[call].op

    def key(self, tensor_id: TensorId, call: int) -> AccessKey:
        """The access of a tensor by a call."""
        return tensor_id, self.trace.uses[tensor_id].index(call) + 1

    def access_of(self, call: int) -> AccessKey:
        """An access of a call: its first operand's."""
        of = self.trace.calls[call]
        return self.key((*of.inputs, *of.outputs)[0], call)

    @cached_property
    def learned(self) -> frozenset[TensorId]:
        """The values that the forward pass computes with parameters: not those from the data alone, such as a mask. All
        its values, if it reads no parameter."""
        found = {t.tensor_id for t in self.trace.tensors.values() if t.persistent}
        for call in self.trace.calls[:self.turn]:
            if not found.isdisjoint(call.inputs):
                found.update(call.outputs)
        return frozenset(found.intersection(self.made) or self.made)

    def articulations(self, candidates: frozenset[TensorId]) -> list[TensorId]:
        """Those of some values of the forward pass that cut it in two, in the order in which they are made: all that is
        computed after one is computed from it alone, as far as the candidates tell, and what is made of the data."""
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
