"""Writes in place as results that take over the place of what was written.

A program that writes ``relu_(x)`` leaves nothing that could be computed again from what ``x`` was. The same program
with a new name for what is in ``x`` from then on takes no more bytes, since the old value ends there, and every value
has one call that makes it: so a plan may drop it. What cannot be computed again anyway (what outlives the iteration, or
is drawn by lot) keeps its name, and is written.
"""

from __future__ import annotations

from dataclasses import replace

from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor


def functional(trace: Trace) -> Trace:
    """The trace with a new tensor for each write to a value that can be computed again. A call that writes another one
    cannot be carried out twice."""
    names: dict[TensorId, TensorId] = {}  # what is in a tensor now
    tensors = dict(trace.tensors)
    fresh = max(tensors, default=-1) + 1
    again: set[TensorId] = set()  # made by calls that can be carried out twice
    calls = []
    for call in trace.calls:
        written = [i for i in dict.fromkeys(call.writes) if names.get(i, i) in again]
        before = {i: names.get(i, i) for i in written}
        inputs = _renamed(call.inputs, names)
        for i in written:
            names[i] = fresh
            tensors[fresh] = TraceTensor(fresh, tensors[i].nbytes, False)
            fresh += 1
        calls.append(_rewritten(call, inputs, before, names))
        if calls[-1].replayable:
            again.update(calls[-1].outputs)
    return Trace(tuple(calls), tensors, trace.observed_seconds)


def _rewritten(call: TraceCall, inputs: tuple[TensorId, ...], before: dict[TensorId, TensorId],
               names: dict[TensorId, TensorId]) -> TraceCall:
    """A call after whose writes tensors have these names; ``before``: those that what it wrote had until then."""
    over = tuple((names[i], old) for i, old in before.items())
    writes = tuple(names.get(i, i) for i in call.writes if i not in before)
    return replace(call, inputs=inputs, outputs=(*call.outputs, *(new for new, _ in over)), writes=writes,
                   frees=(*(old for _, old in over), *_renamed(call.frees, names)), saves=_renamed(call.saves, names),
                   donated=(*call.donated, *over), may_donate=(*call.may_donate, *over),
                   replayable=call.replayable and not writes)


def _renamed(ids: tuple[TensorId, ...], names: dict[TensorId, TensorId]) -> tuple[TensorId, ...]:
    return tuple(names.get(i, i) for i in ids)
