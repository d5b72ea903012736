"""A network that is a chain, as a trace made by hand: layers of equal time and bytes, for what is known of chains."""

from __future__ import annotations

from minidl.meta import Algorithm
from minidl.plan.trace import Trace, TraceCall, TraceTensor

MIB = 1 << 20


def chain(layers: int, *, seconds: float = 0.01, nbytes: int = MIB) -> Trace:
    """x[i] is made from x[i - 1] in so many seconds, and the gradient g[i - 1] from x[i - 1] and g[i] in twice as many.

    The first call makes x[0], which cannot be made again.
    """
    def call(reads: tuple[int, ...], makes: int, takes: float, frees: tuple[int, ...] = ()) -> TraceCall:
        return TraceCall("work", reads, (makes,), takes, (Algorithm("", takes),), frees, replayable=bool(reads))

    gradient = layers + 1
    calls = [call((), 0, 0.0), *(call((i - 1,), i, seconds) for i in range(1, layers + 1)),
             call((layers,), gradient, seconds / 2, (layers,))]
    for i in range(layers, 0, -1):
        ends = (i - 1, gradient) if i > 1 else (i - 1, gradient, gradient + 1)
        calls.append(call((i - 1, gradient), gradient + 1, 2 * seconds, ends))
        gradient += 1
    return Trace(tuple(calls), {t: TraceTensor(t, nbytes, False) for t in range(gradient + 1)})
