"""Rewrites operations in place as ordinary ones, whose output is donated the bytes of the value that they overwrite.

After ``relu_(x)`` the old value of ``x`` is gone, so nothing can be recomputed from it. This rewrite gives the new
value of ``x`` a tensor of its own. It takes no more bytes, since the old value ends with the call. Now one call makes
every value, so a plan may drop it. A value that cannot be recomputed anyway (it outlives the iteration, or is random)
keeps its tensor, and is written in place.
"""

from dataclasses import replace

from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor


def functional(trace: Trace) -> Trace:
    """Return the trace with a new tensor for each write in place to a value that can be recomputed.
    A call that writes any other value is marked as not replayable."""
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
    """Return the call with new ids. names: id -> its new id after the call; before: id -> the value it overwrites."""
    over = tuple((names[i], old) for i, old in before.items())
    writes = tuple(names.get(i, i) for i in call.writes if i not in before)
    return replace(call, inputs=inputs, outputs=(*call.outputs, *(new for new, _ in over)), writes=writes,
                   frees=(*(old for _, old in over), *_renamed(call.frees, names)), saves=_renamed(call.saves, names),
                   donated=(*call.donated, *over), may_donate=(*call.may_donate, *over),
                   replayable=call.replayable and not writes)


def _renamed(ids: tuple[TensorId, ...], names: dict[TensorId, TensorId]) -> tuple[TensorId, ...]:
    return tuple(names.get(i, i) for i in ids)
