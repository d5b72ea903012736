"""A step as it was recorded: its trace, and what ties that to packs, unpacks, states and lines of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from minidl.plan.trace import TensorId, Trace
from minidl.torch.origins import Origin


class Kind(Enum):
    """The role of a tensor that outlives a step; its value is the word for many of them."""

    PARAMETER = "parameters"
    GRADIENT = "gradients"
    STATE = "optimizer state"


@dataclass(frozen=True)
class Seen:
    """A recorded step.

    packs    the tensor of each managed pack, by its number.
    unpacks  per unpack: the call of the trace that comes next. An unpack is before it.
    orders   per call of the trace: its number among the calls that a recorder sees; 0: it is none.
    recording_seconds  that recording has taken a call.
    kinds    of the tensors that outlive the step.
    states   of these, what waits on the host between steps: the part of its optimizer that it belongs to, and how many
             parts there are.
    origins  per call of the trace: where in the program it came from.
    """

    trace: Trace
    packs: dict[int, TensorId]
    unpacks: tuple[int, ...]
    orders: tuple[int, ...] = ()
    recording_seconds: float = 0.0
    kinds: Mapping[TensorId, Kind] = field(default_factory=dict)
    states: Mapping[TensorId, tuple[int, int]] = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Bytes of what waits on the host between steps."""
        return sum(self.trace.tensors[tensor_id].nbytes for tensor_id in self.states)

    def swapping(self) -> Seen:
        """The same step, of which nothing can be computed again."""
        calls = tuple(replace(call, replayable=False) for call in self.trace.calls)
        return replace(self, trace=replace(self.trace, calls=calls))

    def staying(self, share: float) -> Seen:
        """The same step if the state of this share of each optimizer's parts were on the device all the time."""
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
