"""Estimated times for planners that do without measured ones: a call takes its FLOPs divided by the device's peak rate.

Memory-bound calls (all but convolutions and matrix products) then look almost free. Systems that decide by layer type,
such as vDNN or OpenAI's checkpointing in its speed mode, assume the same.
"""

from collections.abc import Sequence
from dataclasses import replace

from minidl.plan.trace import Trace


def with_static_times(trace: Trace, flops: Sequence[float], *, peak_flops: float) -> Trace:
    """Return the trace with estimated times. flops: the FLOPs of each call. peak_flops: the device's FLOPs per second.
    A call's fastest algorithm takes the estimated time; its other algorithms keep their ratios to the fastest."""
    calls = []
    for call, work in zip(trace.calls, flops, strict=True):
        seconds = work / peak_flops
        fastest = min((a.seconds for a in call.algorithms), default=0.0)
        algorithms = tuple(replace(a, seconds=seconds * (a.seconds / fastest if fastest else 1.0))
                           for a in call.algorithms)
        calls.append(replace(call, seconds=seconds, algorithms=algorithms))
    return Trace(tuple(calls), trace.tensors, windows=trace.windows)
