"""Traces and plans as JSON: what is measured on one machine can be planned, compared or replayed on another.

docs/formats.md describes both. Every file names its format and version; what is unknown, missing or of the wrong kind
is a UserError that says where. Knows no policy: of a plan only what the engine obeys is kept, not what its policy noted
for itself (search state, room for feedback), beside what tells the iteration that it was made for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from minidl.errors import UserError
from minidl.meta import Algorithm
from minidl.plan.plan import AccessKey, Action, Plan, ResidencyKey
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor

TRACE_FORMAT, PLAN_FORMAT = "minidl-trace", "minidl-plan"
VERSIONS = {TRACE_FORMAT: 1, PLAN_FORMAT: 2}
LARGEST = sys.float_info.max
Value = TypeVar("Value")


# Writing -------------------------------------------------------------------------------------------------------------
def trace_to_json(trace: Trace) -> str:
    """One line of JSON for each tensor and each call."""
    tensors = [{"id": t.tensor_id, "bytes": t.nbytes, "persistent": t.persistent} for t in trace.tensors.values()]
    return _document(TRACE_FORMAT, {"tensors": tensors, "calls": [_call_to_data(call) for call in trace.calls]})


def _call_to_data(call: TraceCall) -> dict[str, Any]:
    return {
        "op": call.op, "inputs": call.inputs, "outputs": call.outputs, "seconds": call.seconds,
        "algorithms": [{"name": a.name, "seconds": a.seconds, "workspace": a.workspace, "bits_class": a.bits_class}
                       for a in call.algorithms],
        "frees": call.frees, "donated": call.donated, "may_donate": call.may_donate, "writes": call.writes,
        "replayable": call.replayable}


@dataclass(frozen=True)
class SavedPlan:
    """A plan as a file holds it, with what tells the iteration that it was made for.

    calls    how many that has.
    evicted  the tensors that the plan evicts -> the operation that makes each ("" if none does), and bytes.
    """

    plan: Plan
    calls: int
    evicted: Mapping[TensorId, tuple[str, int]]

    @classmethod
    def of(cls, plan: Plan, trace: Trace) -> SavedPlan:
        """A plan for an iteration like this one. Raises KeyError for a tensor that the trace does not have."""
        made_by = {tensor_id: call.op for call in trace.calls for tensor_id in call.outputs}
        obeyed = Plan(evictions=plan.evictions, prefetches=plan.prefetches, offsets=plan.offsets,
                      predicted_seconds=plan.predicted_seconds)
        return cls(obeyed, len(trace.calls),
                   {t: (made_by.get(t, ""), trace.tensors[t].nbytes) for t, _ in plan.evictions})


def plan_to_json(saved: SavedPlan) -> str:
    """One line of JSON for each eviction and each in-trigger."""
    plan = saved.plan
    return _document(PLAN_FORMAT, {
        "calls": saved.calls,
        "predicted_seconds": plan.predicted_seconds,
        "evictions": [{"tensor": t, "access": n, "action": action.value, "op": saved.evicted[t][0],
                       "bytes": saved.evicted[t][1]} for (t, n), action in plan.evictions.items()],
        "prefetches": [{"tensor": t, "access": n, "swap_in": ids} for (t, n), ids in plan.prefetches.items()],
        "offsets": [{"tensor": t, "arrival": n, "offset": offset} for (t, n), offset in plan.offsets.items()]})


def _document(name: str, parts: dict[str, Any]) -> str:
    lines = [f'{{"format": {json.dumps(name)}, "version": {VERSIONS[name]}']
    for key, value in parts.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in value)
            lines.append(f"{json.dumps(key)}: [\n  {rows}]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return ",\n ".join(lines) + "}\n"


# Reading -------------------------------------------------------------------------------------------------------------
def trace_from_json(text: str | bytes) -> Trace:
    """Raises UserError naming what is wrong, and where."""
    return _read(text, TRACE_FORMAT, _trace_from_data)


def _trace_from_data(data: dict[str, Any]) -> Trace:
    _known(data, "", "tensors calls")
    tensors: dict[TensorId, TraceTensor] = {}
    for where, entry in _entries(data, "", "tensors"):
        _known(entry, where, "id bytes persistent")
        tensor = TraceTensor(_field(entry, where, "id", _integer), _field(entry, where, "bytes", _count),
                             _field(entry, where, "persistent", _flag))
        if tensor.tensor_id in tensors:
            raise _Wrong(f"{where}.id: tensor {tensor.tensor_id} is listed twice")
        tensors[tensor.tensor_id] = tensor
    calls = tuple([_call_from_data(entry, where) for where, entry in _entries(data, "", "calls")])
    made: set[TensorId] = set()
    for n, call in enumerate(calls):
        for key, ids in (("inputs", call.inputs), ("outputs", call.outputs), ("frees", call.frees),
                         ("writes", call.writes), ("donated", _flat(call.donated)),
                         ("may_donate", _flat(call.may_donate))):
            unknown = [tensor_id for tensor_id in ids if tensor_id not in tensors]
            if unknown:
                raise _Wrong(f"calls[{n}].{key}: tensor {unknown[0]} is not listed in tensors")
        again = made.intersection(call.outputs)
        if again:
            raise _Wrong(f"calls[{n}].outputs: tensor {min(again)} was made before")
        made.update(call.outputs)
    return Trace(calls, tensors)


def _call_from_data(entry: dict[str, Any], where: str) -> TraceCall:
    _known(entry, where, "op inputs outputs seconds algorithms frees donated may_donate writes replayable")
    algorithms = []
    for at, row in _entries(entry, where, "algorithms"):
        _known(row, at, "name seconds workspace bits_class")
        algorithms.append(Algorithm(_field(row, at, "name", _text), _field(row, at, "seconds", _duration),
                                    _field(row, at, "workspace", _count), _field(row, at, "bits_class", _text)))
    return TraceCall(
        _field(entry, where, "op", _text), _field(entry, where, "inputs", _ids), _field(entry, where, "outputs", _ids),
        _field(entry, where, "seconds", _duration), tuple(algorithms), _field(entry, where, "frees", _ids),
        donated=_field(entry, where, "donated", _pairs), may_donate=_field(entry, where, "may_donate", _pairs),
        writes=_field(entry, where, "writes", _ids), replayable=_field(entry, where, "replayable", _flag))


def plan_from_json(text: str | bytes) -> SavedPlan:
    """Raises UserError naming what is wrong, and where."""
    return _read(text, PLAN_FORMAT, _plan_from_data)


def read_plan(path: str) -> SavedPlan:
    """A plan file. Raises UserError."""
    try:
        return plan_from_json(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _plan_from_data(data: dict[str, Any]) -> SavedPlan:
    _known(data, "", "calls predicted_seconds evictions prefetches offsets")
    evictions: dict[AccessKey, Action] = {}
    evicted: dict[TensorId, tuple[str, int]] = {}
    for where, entry in _entries(data, "", "evictions"):
        _known(entry, where, "tensor access action op bytes")
        key = _access(entry, where, evictions)
        evictions[key] = _field(entry, where, "action", _action)
        facts = _field(entry, where, "op", _text), _field(entry, where, "bytes", _count)
        if evicted.setdefault(key[0], facts) != facts:
            raise _Wrong(f"{where}: tensor {key[0]} had another op or other bytes before")
    prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
    for where, entry in _entries(data, "", "prefetches"):
        _known(entry, where, "tensor access swap_in")
        prefetches[_access(entry, where, prefetches)] = _field(entry, where, "swap_in", _ids)
    offsets: dict[ResidencyKey, int] = {}
    for where, entry in _entries(data, "", "offsets"):
        _known(entry, where, "tensor arrival offset")
        stay = _field(entry, where, "tensor", _integer), _field(entry, where, "arrival", _count)
        if stay in offsets:
            raise _Wrong(f"{where}: arrival {stay[1]} of tensor {stay[0]} is listed twice")
        offsets[stay] = _field(entry, where, "offset", _count)
    seconds = None if data.get("predicted_seconds") is None else _field(data, "", "predicted_seconds", _duration)
    plan = Plan(evictions=evictions, prefetches=prefetches, offsets=offsets, predicted_seconds=seconds)
    return SavedPlan(plan, _field(data, "", "calls", _count), evicted)


def _access(entry: dict[str, Any], where: str, taken: Iterable[AccessKey]) -> AccessKey:
    key = _field(entry, where, "tensor", _integer), _field(entry, where, "access", _count)
    if not key[1]:
        raise _Wrong(f"{where}.access: accesses are counted from 1")
    if key in taken:
        raise _Wrong(f"{where}: access {key[1]} of tensor {key[0]} is listed twice")
    return key


# The pieces: each reader takes a value, and answers None if it is not of its kind ------------------------------------
def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _duration(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value <= LARGEST else None


def _flag(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _ids(value: Any) -> tuple[TensorId, ...] | None:
    return tuple(value) if type(value) is list and all(type(item) is int for item in value) else None


def _pairs(value: Any) -> tuple[tuple[TensorId, TensorId], ...] | None:
    if type(value) is not list or not all((ids := _ids(item)) is not None and len(ids) == 2 for item in value):
        return None
    return tuple((first, second) for first, second in value)


def _list(value: Any) -> list[Any] | None:
    return value if type(value) is list else None


def _action(value: Any) -> Action | None:
    return next((action for action in Action if action.value == value), None)


WANTED: dict[Callable[[Any], Any], str] = {
    _integer: "an integer",
    _count: "an integer of at least 0",
    _duration: "seconds, a number of at least 0",
    _flag: "true or false",
    _text: "a string",
    _ids: "a list of tensor ids",
    _pairs: "a list of pairs of tensor ids",
    _list: "a list of objects",
    _action: " or ".join(json.dumps(action.value) for action in Action),
}


class _Wrong(Exception):
    """What is wrong with a document, and where."""


def _read(text: str | bytes, name: str, build: Callable[[dict[str, Any]], Value]) -> Value:
    """A document of the named format, built from what its head does not say."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name}: not JSON: {error}") from None
    if type(data) is not dict or "format" not in data:
        raise UserError(f'{name}: expected an object with "format": "{name}"')
    found, version = data.pop("format"), data.pop("version", None)
    if found != name:
        raise UserError(f"{name}: the format of this file is {_shown(found)}")
    if type(version) is not int or version != VERSIONS[name]:
        raise UserError(f"{name}: version {_shown(version)}; only version {VERSIONS[name]} can be read")
    try:
        return build(data)
    except _Wrong as wrong:
        raise UserError(f"{name}: {wrong}") from None


def _known(entry: dict[str, Any], where: str, keys: str) -> None:
    """No key but these."""
    for key in entry:
        if key not in keys.split():
            raise _Wrong(f"{_at(where, key)} is unknown; there are {', '.join(keys.split())}")


def _entries(entry: dict[str, Any], where: str, key: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """Each object of a list, with where it is."""
    at = _at(where, key)
    rows = _field(entry, where, key, _list)
    for n, row in enumerate(rows):
        if type(row) is not dict:
            raise _Wrong(f"{at}[{n}]: expected an object, got {_shown(row)}")
        yield f"{at}[{n}]", row


def _field(entry: dict[str, Any], where: str, key: str, read: Callable[[Any], Value | None]) -> Value:
    if key not in entry:
        raise _Wrong(f"{_at(where, key)} is missing")
    value = read(entry[key])
    if value is None:
        raise _Wrong(f"{_at(where, key)}: expected {WANTED[read]}, got {_shown(entry[key])}")
    return value


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _flat(pairs: Iterable[tuple[TensorId, TensorId]]) -> list[TensorId]:
    return [tensor_id for pair in pairs for tensor_id in pair]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
