"""Traces and plans as JSON: what is measured on one machine can be planned, compared or replayed on another.

docs/formats.md describes both; the classes below say the same to msgspec, which holds a file against them. What is
unknown, missing or of the wrong kind is a UserError that says where. Knows no policy: of a plan only what the engine
obeys is kept, not what its policy noted for itself (search state, room for feedback), beside what tells the iteration
that it was made for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import decode

from minidl.errors import UserError
from minidl.meta import ALIGNMENT
from minidl.numbers import MOST_REAL, MOST_WHOLE
from minidl.plan.plan import AccessKey, Action, Eviction, Plan
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor
from minidl.reading import read_bytes

TRACE_FORMAT, PLAN_FORMAT = "minidl-trace", "minidl-plan"
VERSIONS = {TRACE_FORMAT: 1, PLAN_FORMAT: 3}
MOST_BYTES = 256 << 20  # of a file: a trace has about 400 a call
MOST_SHOWN = 200  # characters of a message: what a file calls its keys may be of any length
MOST_ID = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=MOST_WHOLE)]
AccessCount = Annotated[int, Meta(ge=1, le=MOST_WHOLE)]
Address = Annotated[int, Meta(ge=0, le=MOST_WHOLE, multiple_of=ALIGNMENT)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_REAL)]
Id = Annotated[TensorId, Meta(ge=-MOST_ID, le=MOST_ID)]
Ids = tuple[Id, ...]
Pairs = tuple[tuple[Id, Id], ...]
Key = TypeVar("Key")
Value = TypeVar("Value")


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
        evicted = {t: (made_by.get(t, ""), trace.tensors[t].nbytes) for t, _ in plan.evictions}
        return cls(plan, len(trace.calls), evicted)


# Writing -------------------------------------------------------------------------------------------------------------
def trace_to_json(trace: Trace) -> str:
    """A trace as a document with a line for each tensor and each call. Raises ValueError for seconds beyond floats."""
    tensors = [{"id": t.tensor_id, "bytes": t.nbytes, "persistent": t.persistent} for t in trace.tensors.values()]
    return _document(TRACE_FORMAT, {"tensors": tensors, "calls": list(trace.calls)})


def plan_to_json(saved: SavedPlan) -> str:
    """A plan as a document with a line for each eviction and each in-trigger. Raises ValueError like trace_to_json."""
    plan = saved.plan
    return _document(PLAN_FORMAT, {
        "calls": saved.calls, "predicted_seconds": plan.predicted_seconds,
        "evictions": [{"tensor": t, "access": n, "action": action.value, "op": saved.evicted[t][0],
                       "bytes": saved.evicted[t][1]} for (t, n), action in plan.evictions.items()],
        "prefetches": [{"tensor": t, "access": n, "swap_in": ids} for (t, n), ids in plan.prefetches.items()],
        "offsets": [{"tensor": t, "arrival": n, "offset": offset} for (t, n), offset in plan.offsets.items()],
        "waits": [{"tensor": t, "access": n} for t, n in sorted(plan.waits)],
        "releases": _releases(plan.releases),
        "replays": [{"tensor": t, "access": n, "replay": ids} for (t, n), ids in plan.replays.items()],
        "spent": _releases(plan.spent),
        "algorithms": [{"call": call, "algorithm": name} for call, name in plan.algorithms.items()]})


def _releases(releases: Mapping[AccessKey, tuple[Eviction, ...]]) -> list[dict[str, object]]:
    return [{"tensor": t, "access": n, "release": [[other, action.value] for other, action in each]}
            for (t, n), each in releases.items()]


def is_trace(head: bytes) -> bool:
    """Whether a file that begins like this was made by ``trace_to_json``."""
    return head.startswith(_beginning(TRACE_FORMAT).encode())


def is_plan(head: bytes) -> bool:
    """Whether a file that begins like this was made by ``plan_to_json``."""
    return head.startswith(_beginning(PLAN_FORMAT).encode())


def _beginning(name: str) -> str:
    return f'{{"format": "{name}"'


def _document(name: str, parts: Mapping[str, object]) -> str:
    lines = [f'{_beginning(name)}, "version": {VERSIONS[name]}']
    for key, value in parts.items():
        rows = ",\n  ".join(map(_line, value)) if isinstance(value, list) else ""
        lines.append(f'"{key}": [\n  {rows}]' if rows else f'"{key}": {_line(value)}')
    return ",\n ".join(lines) + "}\n"


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False, default=_by_name)


def _by_name(value: Any) -> dict[str, object]:
    """A call or an algorithm by the names of its fields, which are those of the file."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


# What a file holds ---------------------------------------------------------------------------------------------------
class _Head(Struct):
    format: str
    version: int


class _Row(Struct, forbid_unknown_fields=True):
    pass


class _Tensor(_Row):
    id: Id
    bytes: Count
    persistent: bool


class _Algorithm(_Row):
    name: str
    seconds: Seconds
    workspace: Count
    bits_class: str


class _Call(_Row):
    op: str
    inputs: Ids
    outputs: Ids
    seconds: Seconds
    algorithms: Annotated[list[_Algorithm], Meta(min_length=1)]
    frees: Ids
    donated: Pairs
    may_donate: Pairs
    writes: Ids
    replayable: bool


class _Trace(_Head, forbid_unknown_fields=True):
    tensors: list[_Tensor]
    calls: list[_Call]


class _Access(_Row):
    tensor: Id
    access: AccessCount

    @property
    def key(self) -> AccessKey:
        return self.tensor, self.access


class _Eviction(_Access):
    action: Action
    op: str
    bytes: Count


class _Prefetch(_Access):
    swap_in: Ids


class _Release(_Access):
    release: tuple[Eviction, ...]


class _Replay(_Access):
    replay: Ids


class _Choice(_Row):
    call: Count
    algorithm: str


class _Offset(_Row):
    tensor: Id
    arrival: Count
    offset: Address


class _Plan(_Head, forbid_unknown_fields=True):
    calls: Count
    predicted_seconds: Seconds | None
    evictions: list[_Eviction]
    prefetches: list[_Prefetch]
    offsets: list[_Offset]
    waits: list[_Access]
    releases: list[_Release]
    replays: list[_Replay]
    spent: list[_Release]
    algorithms: list[_Choice]


Document = TypeVar("Document", _Trace, _Plan)


# Reading -------------------------------------------------------------------------------------------------------------
def trace_from_json(text: str | bytes) -> Trace:
    """The trace that a document holds. Raises UserError naming what is wrong, and where."""
    return _read(text, TRACE_FORMAT, _Trace, _trace)


def plan_from_json(text: str | bytes) -> SavedPlan:
    """The plan that a document holds. Raises UserError naming what is wrong, and where."""
    return _read(text, PLAN_FORMAT, _Plan, _plan)


def read_plan(path: str) -> SavedPlan:
    """The plan in a file. Raises UserError naming the file, what is wrong, and where."""
    data = read_bytes(path, most=MOST_BYTES)
    try:
        return plan_from_json(data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _read(text: str | bytes, name: str, kind: type[Document], build: Callable[[Document], Value]) -> Value:
    if len(text) > MOST_BYTES:
        raise UserError(f"{name}: longer than the {MOST_BYTES} bytes that are read")
    try:
        head = decode(text, type=_Head)  # alone, as a file of another version may have other keys
        if head.format != name:
            raise UserError(f"{name}: the format of this file is {_short(json.dumps(head.format))}")
        if head.version != VERSIONS[name]:
            raise UserError(f"{name}: version {head.version}; only version {VERSIONS[name]} can be read")
        return build(decode(text, type=kind))
    except ValidationError as error:
        raise UserError(f"{name}: {_short(error)}") from None
    except (DecodeError, UnicodeError) as error:
        raise UserError(f"{name}: not JSON: {_short(error)}") from None
    except RecursionError:
        raise UserError(f"{name}: not JSON that can be read: nested too deeply") from None


def _trace(file: _Trace) -> Trace:
    tensors = _each_once("tensors", ((row.id, TraceTensor(row.id, row.bytes, row.persistent)) for row in file.tensors))
    made: set[TensorId] = set()
    for n, call in enumerate(file.calls):
        named = {*call.inputs, *call.outputs, *call.frees, *call.writes, *chain(*call.donated, *call.may_donate)}
        if not named <= tensors.keys():
            raise ValidationError(f"tensor {min(named - tensors.keys())} is not listed in tensors - at `$.calls[{n}]`")
        if not made.isdisjoint(call.outputs):
            again = min(made.intersection(call.outputs))
            raise ValidationError(f"tensor {again} was made before - at `$.calls[{n}].outputs`")
        made.update(call.outputs)
    return Trace(convert(file.calls, tuple[TraceCall, ...], from_attributes=True), tensors)


def _plan(file: _Plan) -> SavedPlan:
    evicted: dict[TensorId, tuple[str, int]] = {}
    for n, row in enumerate(file.evictions):
        if evicted.setdefault(row.tensor, (row.op, row.bytes)) != (row.op, row.bytes):
            raise ValidationError(f"tensor {row.tensor} had another op or other bytes before - at `$.evictions[{n}]`")
    plan = Plan(
        evictions=_each_once("evictions", ((row.key, row.action) for row in file.evictions)),
        prefetches=_each_once("prefetches", ((row.key, row.swap_in) for row in file.prefetches)),
        offsets=_each_once("offsets", (((row.tensor, row.arrival), row.offset) for row in file.offsets)),
        waits=frozenset(_each_once("waits", ((row.key, None) for row in file.waits))),
        releases=_each_once("releases", ((row.key, row.release) for row in file.releases)),
        spent=_each_once("spent", ((row.key, row.release) for row in file.spent)),
        replays=_each_once("replays", ((row.key, row.replay) for row in file.replays)),
        algorithms=_each_once("algorithms", ((row.call, row.algorithm) for row in file.algorithms)),
        predicted_seconds=file.predicted_seconds)
    return SavedPlan(plan, file.calls, evicted)


def _each_once(where: str, pairs: Iterable[tuple[Key, Value]]) -> dict[Key, Value]:
    found: dict[Key, Value] = {}
    for n, (key, value) in enumerate(pairs):
        if key in found:
            raise ValidationError(f"{key} is listed twice - at `$.{where}[{n}]`")
        found[key] = value
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN // 2]}...{text[-MOST_SHOWN // 2:]}"
