"""A recorded step before its tensors have names: which layer or parameter they belong to is known later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minidl.memory.storage import TensorId
from minidl.plan.trace import Trace
from minidl.view.recording import Stay, Subject, TensorKind, WorkEvent


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor as it was when the recorder first saw it.

    backward: True if it was made while gradients were not recorded. owner: the (negative) id of the parameter whose
    gradient it is, or 0.
    """

    tensor_id: TensorId
    nbytes: int
    persistent: bool
    backward: bool
    owner: TensorId = 0


@dataclass(frozen=True)
class Recorded:
    """A recorded step, whose tensors have no names yet; events and stays refer to them by index in ``tensors``.
    began_s: the time of its beginning, on this machine's clock or on the virtual one."""

    trace: Trace
    tensors: tuple[SeenTensor, ...]
    events: tuple[WorkEvent, ...]
    stays: tuple[Stay, ...]
    began_s: float = 0.0

    def subjects(self, names: Mapping[TensorId, str], parameters: Mapping[TensorId, str]) -> tuple[Subject, ...]:
        """Return the tensors with their names, from layers and parameters."""
        found = []
        for seen in self.tensors:
            if seen.tensor_id in parameters:
                kind = TensorKind.PARAMETER
            elif seen.owner or seen.backward and not seen.persistent:
                kind = TensorKind.GRADIENT
            elif seen.persistent:
                kind = TensorKind.OPTIMIZER_STATE
            else:
                kind = TensorKind.ACTIVATION if seen.tensor_id in names else TensorKind.OTHER
            name = parameters.get(seen.owner) or names.get(seen.tensor_id, "")
            found.append(Subject(seen.tensor_id, name, seen.nbytes, kind))
        return tuple(found)
