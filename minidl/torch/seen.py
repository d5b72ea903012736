"""A recorded step: its trace, and how the trace relates to saved tensors, optimizer state and lines of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from minidl.plan.trace import TensorId, Trace
from minidl.torch.origins import Origin


class Kind(Enum):
    """The role of a tensor that outlives a step. Each member's value is the role's name in reports."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    STATE = "optimizer state"


@dataclass(frozen=True)
class Seen:
    """A recorded step: its trace, and the facts that connect the trace with the program.

    packs    n -> the id of the n-th tensor that autograd saved, for those that may be evicted.
    unpacks  per read of a saved tensor: the index in the trace of the next call after it.
    orders   per call of the trace: its number among the calls that a recorder sees; 0 if it is not one of them.
    recording_seconds  average time that recording has taken per call.
    kinds    the roles of the tensors that outlive the step.
    states   tensor of optimizer state that is on the host between steps -> the number of the optimizer's part that it
             belongs to, and how many parts the optimizer steps in.
    origins  per call of the trace: where in the program it comes from.
    outlive  saved tensors that autograd still holds, unread, when the step ends. In the trace they end when they leave.
    there_bytes  bytes on the device when the step began.
    """

    trace: Trace
    packs: dict[int, TensorId]
    unpacks: tuple[int, ...]
    orders: tuple[int, ...] = ()
    recording_seconds: float = 0.0
    kinds: Mapping[TensorId, Kind] = field(default_factory=dict)
    states: Mapping[TensorId, tuple[int, int]] = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()
    outlive: frozenset[TensorId] = frozenset()
    there_bytes: int = 0

    @property
    def outliving_bytes(self) -> int:
        """Bytes that a step needs more than its trace has, if the saved tensors that outlive it stay."""
        return sum(self.trace.tensors[tensor_id].nbytes for tensor_id in self.outlive)

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer state that is on the host between steps."""
        return sum(self.trace.tensors[tensor_id].nbytes for tensor_id in self.states)

    def swapping(self) -> Seen:
        """Return a copy of this step in which no call can be replayed, so that plans for it only swap."""
        calls = tuple(replace(call, replayable=False) for call in self.trace.calls)
        return replace(self, trace=replace(self.trace, calls=calls))

    def staying(self, share: float) -> Seen:
        """Return a copy of this step in which the state of a ``share`` of the optimizer's parts stays on the device."""
        stays = {i for i, (number, parts) in self.states.items() if number < round(share * parts)}
        if not stays:
            return self
        calls = tuple(replace(call, outputs=_without(call.outputs, stays), frees=_without(call.frees, stays))
                      if not stays.isdisjoint((*call.outputs, *call.frees)) else call for call in self.trace.calls)
        tensors = {i: replace(t, persistent=True) if i in stays else t for i, t in self.trace.tensors.items()}
        return replace(self, trace=replace(self.trace, calls=calls, tensors=tensors),
                       states={i: part for i, part in self.states.items() if i not in stays})


def _without(ids: tuple[TensorId, ...], some: set[TensorId]) -> tuple[TensorId, ...]:
    return tuple(i for i in ids if i not in some)
