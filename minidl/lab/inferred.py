"""Adds facts to a trace that the engine needs and the trace lacks, inferred from the order of its calls.

Version 1 of the format, and programs of other frameworks, do not say when tensors end, which calls keep a tensor for a
gradient, and which results outlive the iteration. The order of the calls tells all three, nearly. A tensor ends with
its last use. A tensor that is made before the turning point (where most bytes are in use) and used after it was kept
for a gradient. A tensor that never ends is, for example, a gradient that the optimizer uses in the next iteration.
"""

from dataclasses import replace

from minidl.plan.trace import TensorId, Trace


def completed(trace: Trace) -> Trace:
    """Return the trace with ends, kept tensors and lasting results inferred.
    Return the same object if a call of the trace says which tensors it keeps. Ends that the trace has stay."""
    if any(call.saves or call.takes for call in trace.calls):
        return trace
    trace = _ended(trace)
    saves, takes = _kept(trace)
    return with_lasting(Trace(tuple(
        replace(call, saves=tuple(saves.get(n, ())), takes=tuple(takes.get(n, ())))
        for n, call in enumerate(trace.calls)), trace.tensors, trace.observed_seconds))


def with_lasting(trace: Trace) -> Trace:
    """Return the trace in which each result that outlives the iteration is a leaf after the call that makes it."""
    ending = {tensor_id for call in trace.calls for tensor_id in call.frees}
    lasting = [{i for i in call.outputs if i not in ending and not trace.tensors[i].persistent} for call in trace.calls]
    calls = tuple(replace(call, leaves=tuple(sorted(lasting[n - 1])) if n else (), long_lived=bool(lasting[n]))
                  for n, call in enumerate(trace.calls))
    return Trace(calls, trace.tensors, trace.observed_seconds)


def _ended(trace: Trace) -> Trace:
    """Return the trace, in which each tensor that is not persistent ends with its last use, if it tells no ends."""
    if any(call.frees for call in trace.calls):
        return trace
    last: dict[TensorId, int] = {}
    for n, call in enumerate(trace.calls):
        last.update(dict.fromkeys((*call.inputs, *call.outputs), n))
    ends: dict[int, list[TensorId]] = {}
    for tensor_id, n in last.items():
        if not trace.tensors[tensor_id].persistent:
            ends.setdefault(n, []).append(tensor_id)
    return Trace(tuple(replace(call, frees=tuple(ends.get(n, ()))) for n, call in enumerate(trace.calls)),
                 trace.tensors, trace.observed_seconds)


def live_bytes(trace: Trace) -> list[int]:
    """Return for each call the bytes of all tensors that exist during it, if nothing is evicted.

    A tensor that no call makes exists from the start. An output that took over an input's bytes counts once.
    """
    made = {tensor_id for call in trace.calls for tensor_id in call.outputs}
    live = sum(t.nbytes for t in trace.tensors.values() if t.tensor_id not in made)
    profile, ended = [], set[TensorId]()
    for call in trace.calls:
        over = {given for _, given in call.donated} & set(call.frees)
        live += sum(trace.tensors[i].nbytes for i in call.outputs) - sum(trace.tensors[i].nbytes for i in over)
        profile.append(live)
        ends = set(call.frees) - ended
        ended |= ends
        live -= sum(trace.tensors[i].nbytes for i in ends - over)
    return profile


def _kept(trace: Trace) -> tuple[dict[int, list[TensorId]], dict[int, list[int]]]:
    """Return (call -> tensors that it keeps for its gradient, call -> earlier calls whose gradients come before it)."""
    profile = live_bytes(trace)
    turn = profile.index(max(profile))
    made = {tensor_id: n for n, call in enumerate(trace.calls) for tensor_id in call.outputs}
    keeper, first = dict(made), dict[TensorId, int]()
    for n, call in enumerate(trace.calls):
        for tensor_id in dict.fromkeys(call.inputs):
            if tensor_id not in made:
                continue
            if n <= turn and keeper[tensor_id] == made[tensor_id]:
                keeper[tensor_id] = n  # the first that reads it
            elif n > turn:
                first.setdefault(tensor_id, n)
    saves: dict[int, list[TensorId]] = {}
    taken: dict[int, int] = {}
    for tensor_id, wanted in first.items():
        n = keeper[tensor_id]
        if made[tensor_id] <= turn:
            saves.setdefault(n, []).append(tensor_id)
            taken[n] = min(taken.get(n, wanted), wanted)
    takes: dict[int, list[int]] = {}
    for n, at in taken.items():
        takes.setdefault(at, []).append(n)
    return saves, takes
