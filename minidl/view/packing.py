"""A recording as one JSON object for a page: columns of numbers as base64 of little-endian arrays, each string once.

A tensor is referred to by its position in a list, because ids can exceed JavaScript's exact integers. The list has
first the tensors that had bytes in this step (the subjects), then the other tensors of the trace.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minidl.plan.trace import Trace
from minidl.view.recording import Recording, Stay, Subject, TensorKind, WorkEvent

WHOLE, REAL, SMALL = "i32", "f64", "u8"
TYPES = {WHOLE: "<i4", REAL: "<f8", SMALL: "<u1"}  # bytes are REAL: they may exceed 32 bits


def pack(recording: Recording) -> dict[str, Any]:
    """Return the recording as plain data for JSON."""
    words = _Words()
    subjects = [*recording.subjects, *_others(recording.trace, recording.subjects)]
    row = {subject.tensor_id: n for n, subject in reversed(list(enumerate(subjects)))}
    return {
        "title": recording.title, "budget": recording.budget_bytes, "unmanaged": recording.unmanaged_peak_bytes,
        "host": recording.host_capacity_bytes, "began": recording.began_s, "rank": recording.rank,
        "limit": recording.limit_bytes or recording.budget_bytes,
        "facts": [list(fact) for fact in recording.facts],
        "subjects": _subjects(subjects, words), "calls": _calls(recording.trace, row, words),
        "events": _events(recording.events, words), "stays": _stays(recording.stays),
        "steps": {"seconds": column(REAL, [step.seconds for step in recording.steps]),
                  "predicted": column(REAL, [-1.0 if step.predicted_seconds is None else step.predicted_seconds
                                             for step in recording.steps]),
                  "swapped": column(REAL, [step.swapped_bytes for step in recording.steps]),
                  "recomputed": column(REAL, [step.recomputed_bytes for step in recording.steps]),
                  "plan": column(WHOLE, [step.plan for step in recording.steps])},
        "remarks": [[row[tensor_id], text] for tensor_id, text in recording.remarks if tensor_id in row],
        "words": words.all}


class _Words:
    """A table that gives each distinct string a number, from 0 on."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        found = self._numbers.setdefault(word, len(self.all))
        if found == len(self.all):
            self.all.append(word)
        return found


def _others(trace: Trace, subjects: Sequence[Subject]) -> list[Subject]:
    known = {subject.tensor_id for subject in subjects}
    return [Subject(tensor.tensor_id, "", tensor.nbytes,
                    TensorKind.OPTIMIZER_STATE if tensor.persistent else TensorKind.OTHER)
            for tensor in trace.tensors.values() if tensor.tensor_id not in known]


def _subjects(subjects: Sequence[Subject], words: _Words) -> dict[str, Any]:
    return {"id": [str(subject.tensor_id) for subject in subjects],
            "name": column(WHOLE, [words.number(subject.name) for subject in subjects]),
            "line": column(WHOLE, [words.number(subject.line) for subject in subjects]),
            "bytes": column(REAL, [subject.nbytes for subject in subjects]),
            "kind": column(SMALL, [subject.kind for subject in subjects])}


def _calls(trace: Trace, row: Mapping[int, int], words: _Words) -> dict[str, Any]:
    calls = trace.calls
    return {"op": column(WHOLE, [words.number(call.op) for call in calls]),
            "seconds": column(REAL, [call.seconds for call in calls]),
            "inputs": _lists([[row[t] for t in call.inputs] for call in calls]),
            "outputs": _lists([[row[t] for t in call.outputs] for call in calls]),
            "writes": _lists([[row[t] for t in call.writes] for call in calls]),
            "frees": _lists([[row[t] for t in call.frees if t in row] for call in calls])}


def _events(events: Sequence[WorkEvent], words: _Words) -> dict[str, Any]:
    return {"kind": column(SMALL, [event.kind for event in events]),
            "op": column(WHOLE, [words.number(event.op) for event in events]),
            "call": column(WHOLE, [event.call for event in events]),
            "subject": column(WHOLE, [event.subject for event in events]),
            "bytes": column(REAL, [event.nbytes for event in events]),
            "start": column(REAL, [event.start_s for event in events]),
            "end": column(REAL, [event.end_s for event in events]),
            "time": column(REAL, [event.time_s for event in events]),
            "used": column(REAL, [event.used_bytes for event in events]),
            "largest": column(REAL, [event.largest_bytes for event in events]),
            "host": column(REAL, [event.host_bytes for event in events]),
            "workspaceAt": column(REAL, [event.workspace[0] for event in events]),
            "workspace": column(REAL, [event.workspace[1] for event in events])}


def _stays(stays: Sequence[Stay]) -> dict[str, Any]:
    return {"subject": column(WHOLE, [stay.subject for stay in stays]),
            "offset": column(REAL, [stay.offset for stay in stays]),
            "size": column(REAL, [stay.size for stay in stays]),
            "state": column(SMALL, [stay.state for stay in stays]),
            "first": column(WHOLE, [stay.first for stay in stays]),
            "end": column(WHOLE, [stay.end for stay in stays]),
            "fate": column(SMALL, [stay.fate for stay in stays])}


def column(kind: str, values: Iterable[float]) -> dict[str, str]:
    """Return numbers as a base64 column of type ``kind``: "i32", "f64" or "u8", little-endian.
    Raises OverflowError for a number out of the type's range."""
    data = np.array(list(values), TYPES[kind]).tobytes()
    return {"type": kind, "data": base64.b64encode(data).decode()}


def values(packed: Mapping[str, str]) -> np.ndarray:
    """Return the numbers of a column that ``column`` packed."""
    return np.frombuffer(base64.b64decode(packed["data"]), TYPES[packed["type"]])


def _lists(lists: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return lists of whole numbers in packed form: all of them as one flat column, and a column of each list's end."""
    ends: list[int] = []
    flat: list[int] = []
    for each in lists:
        flat.extend(each)
        ends.append(len(flat))
    return {"ends": column(WHOLE, ends), "flat": column(WHOLE, flat)}
