"""Traces as JSON files: a trace measured on one machine can be planned, compared or run again on another.

docs/formats.md describes the document; the classes below describe it for msgspec, which validates files against them.
Version 3 adds the windows, the only gaps that a plan may use. Version 2 adds the fields that running the calls again
needs (``TraceCall``: saves, takes, leaves, long_lived), and most keys of a call are optional. Versions 1 and 2 are
still read.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated

from msgspec import Meta, ValidationError, convert, field

from minidl.plan.document import (
    Count,
    Head,
    Id,
    Ids,
    Pairs,
    Row,
    Seconds,
    beginning,
    document,
    each_once,
    read,
    read_file,
)
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor

FORMAT, VERSION = "minidl-trace", 3


def trace_to_json(trace: Trace) -> str:
    """Return a trace as a JSON document. Raises ValueError for seconds that are infinite or NaN."""
    tensors = [{"id": t.tensor_id, "bytes": t.nbytes, "persistent": t.persistent, "idle": t.idle}
               for t in trace.tensors.values()]
    windows = None if trace.windows is None else [{"tensor": t, "after": after, "until": until}
                                                  for t, (after, until) in trace.windows.items()]
    return document(FORMAT, VERSION, {"tensors": tensors, "calls": list(trace.calls), "windows": windows})


def is_trace(head: bytes) -> bool:
    """True if a file that begins with these bytes was written by ``trace_to_json``."""
    return head.startswith(beginning(FORMAT).encode())


def trace_from_json(text: str | bytes) -> Trace:
    """Return the trace that a document holds. Raises UserError with the mistake and its place."""
    return read(text, FORMAT, READERS)


def read_trace(path: str) -> Trace:
    """Return the trace in a file. Raises UserError with the file, the mistake and its place."""
    return read_file(path, FORMAT, READERS)


# The content of a file -----------------------------------------------------------------------------------------------
class _Tensor(Row):
    id: Id
    bytes: Count
    persistent: bool = False
    idle: Count = 0


class _TensorV1(Row):
    id: Id
    bytes: Count
    persistent: bool

    @property
    def idle(self) -> int:
        return 0


class _Algorithm(Row):
    name: str
    seconds: Seconds
    workspace: Count = 0
    bits_class: str = ""


class _AlgorithmV1(Row):
    name: str
    seconds: Seconds
    workspace: Count
    bits_class: str


class _Call(Row):
    op: str
    inputs: Ids
    outputs: Ids
    seconds: Seconds
    algorithms: Annotated[list[_Algorithm], Meta(min_length=1)] = field(default_factory=list)
    frees: Ids = ()
    donated: Pairs = ()
    may_donate: Pairs = ()
    writes: Ids = ()
    replayable: bool = True
    saves: Ids = ()
    takes: tuple[Count, ...] = ()
    leaves: Ids = ()
    long_lived: bool = False


class _CallV1(Row):
    op: str
    inputs: Ids
    outputs: Ids
    seconds: Seconds
    algorithms: Annotated[list[_AlgorithmV1], Meta(min_length=1)]
    frees: Ids
    donated: Pairs
    may_donate: Pairs
    writes: Ids
    replayable: bool


class _Window(Row):
    tensor: Id
    after: Count
    until: Count


class _TraceV2(Head, forbid_unknown_fields=True):
    tensors: list[_Tensor]
    calls: list[_Call]


class _Trace(_TraceV2, forbid_unknown_fields=True):
    windows: list[_Window] | None = None


class _TraceV1(Head, forbid_unknown_fields=True):
    tensors: list[_TensorV1]
    calls: list[_CallV1]


def _trace(file: _TraceV2 | _TraceV1) -> Trace:
    tensors = each_once("tensors", ((row.id, TraceTensor(row.id, row.bytes, row.persistent, row.idle))
                                    for row in file.tensors))
    made: set[TensorId] = set()
    read_before: set[TensorId] = set()
    calls: Sequence[_Call | _CallV1] = file.calls
    for n, call in enumerate(calls):
        named = {*call.inputs, *call.outputs, *call.frees, *call.writes, *chain(*call.donated, *call.may_donate)}
        if isinstance(call, _Call):
            named.update(call.saves, call.leaves)
            if any(at >= n for at in call.takes):
                raise ValidationError(f"call {max(call.takes)} is not an earlier one - at `$.calls[{n}].takes`")
            if not call.algorithms:
                call.algorithms = [_Algorithm(call.op, call.seconds)]
        if not named <= tensors.keys():
            raise ValidationError(f"tensor {min(named - tensors.keys())} is not listed in tensors - at `$.calls[{n}]`")
        if not made.isdisjoint(call.outputs) or len(set(call.outputs)) < len(call.outputs):
            again = min(made.intersection(call.outputs), default=min(call.outputs))
            raise ValidationError(f"tensor {again} was made before - at `$.calls[{n}].outputs`")
        read_before.update(call.inputs)
        if not read_before.isdisjoint(call.outputs):
            early = min(read_before.intersection(call.outputs))
            raise ValidationError(f"tensor {early} was read before it is made - at `$.calls[{n}].outputs`")
        made.update(call.outputs)
    trace = Trace(convert(file.calls, tuple[TraceCall, ...], from_attributes=True), tensors)
    return trace if not isinstance(file, _Trace) or file.windows is None else _within(trace, file.windows)


def _within(trace: Trace, windows: Sequence[_Window]) -> Trace:
    for n, window in enumerate(windows):
        uses = trace.uses.get(window.tensor, [])
        if (window.after, window.until) not in zip(uses, uses[1:], strict=False):
            raise ValidationError(f"tensor {window.tensor} has no two accesses, one after the other, by calls "
                                  f"{window.after} and {window.until} - at `$.windows[{n}]`")
    found = each_once("windows", ((window.tensor, (window.after, window.until)) for window in windows))
    return replace(trace, windows=found)


READERS = {1: (_TraceV1, _trace), 2: (_TraceV2, _trace), VERSION: (_Trace, _trace)}
