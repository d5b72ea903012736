"""Times for planners that have measured nothing: every call takes its FLOPs at the device's peak.

What is bound by memory, which is all but convolutions and products, then looks almost free: so thinks a system that
goes by layer types, such as vDNN or OpenAI's checkpointing in its speed mode.
"""

from collections.abc import Sequence
from dataclasses import replace

from minidl.plan.trace import Trace


def with_static_times(trace: Trace, flops: Sequence[float], *, peak_flops: float) -> Trace:
    """The same trace with static seconds. ``flops``: of each call; ``peak_flops``: a second.

    The algorithms of a call keep their ratios to each other; the fastest takes the call's static time.
    """
    calls = []
    for call, work in zip(trace.calls, flops, strict=True):
        seconds = work / peak_flops
        fastest = min((a.seconds for a in call.algorithms), default=0.0)
        algorithms = tuple(replace(a, seconds=seconds * (a.seconds / fastest if fastest else 1.0))
                           for a in call.algorithms)
        calls.append(replace(call, seconds=seconds, algorithms=algorithms))
    return Trace(tuple(calls), trace.tensors, windows=trace.windows)
