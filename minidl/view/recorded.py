"""A recorded step before its tensors have names (which are known later), and the recordings in a saved page."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidl.errors import UserError
from minidl.memory.storage import TensorId
from minidl.outside.reading import NotJson, parse_json, read_text
from minidl.plan.trace import Trace
from minidl.view.page import CLOSES, MARK, OPENS
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
        """Return the tensors with kind and name.
        names: tensor id -> the layer that made it; parameters: id of a parameter -> its name."""
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


MOST_BYTES = 256 << 20
HEAD = 4096  # characters in which the page's mark must appear
# The keys of each recording, and the types of their values.
PARTS: dict[str, type] = {"title": str, "budget": int, "unmanaged": int, "host": int, "facts": list, "words": list,
                          "remarks": list, "subjects": dict, "calls": dict, "events": dict, "stays": dict,
                          "steps": dict, "began": float, "rank": int, "limit": int}
BEFORE = {"began": 0.0, "rank": -1}  # of pages that do not have them; their limit is their budget


def read_page(path: str | Path) -> list[dict[str, Any]]:
    """Return the recordings that a page holds. Raises UserError if the file is not a page."""
    text = read_text(Path(path), most=MOST_BYTES)
    _, opened, rest = text.partition(OPENS)
    data, closed, _ = rest.partition(CLOSES)
    try:
        found = parse_json(data) if opened and closed and MARK in text[:HEAD] else None
    except NotJson:
        found = None
    found = [BEFORE | {"limit": each.get("budget")} | each if isinstance(each, dict) else each
             for each in found] if isinstance(found, list) else []
    if not found or not all(map(_is_recording, found)):
        raise UserError(f"{path} is not a memory page: minidl view writes one")
    return found


def _is_recording(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == PARTS.keys() and all(
        type(value[name]) is kind for name, kind in PARTS.items())
