"""Hand-made traces of calls with small whole times and sizes."""

from math import inf

from random_programs import MIB

from minidl.meta import Algorithm
from minidl.plan.costs import Costs
from minidl.plan.trace import Trace, TraceCall, TraceTensor

UNIT = MIB  # bytes
NO_LINK = Costs(inf, inf, 0.0)  # nothing can be swapped


def call(reads, makes, seconds, frees=(), *, may=(), algorithms=(), replayable=True) -> TraceCall:
    """Return one call of a hand-made trace."""
    ways = algorithms or (Algorithm("", seconds),)
    donated = tuple((o, i) for o, i in may if i in frees)
    return TraceCall("work", tuple(reads), tuple(makes), seconds, ways, tuple(frees), donated, tuple(may),
                     replayable=replayable)


def trace_of(calls, units) -> Trace:
    """Return a trace of calls with these tensor sizes in units."""
    return Trace(tuple(calls), {t: TraceTensor(t, round(size * UNIT), False) for t, size in enumerate(units)})


def chain(layers: int) -> Trace:
    """Return a chain of equal layers: x[i] = F(x[i-1]) takes 1 s, g[i-1] = B(x[i-1], g[i]) 2 s; tensors have one unit.
    """
    calls = [call((), (0,), 0.0, replayable=False)]
    calls += [call((i - 1,), (i,), 1.0) for i in range(1, layers)]
    calls.append(call((layers - 1,), (layers,), 1.0))
    g = layers + 1
    calls.append(call((layers,), (g,), 0.5, (layers,)))
    for i in range(layers, 0, -1):
        calls.append(call((i - 1, g), (g + 1,), 2.0, (i - 1, g, *((g + 1,) if i == 1 else ()))))
        g += 1
    return trace_of(calls, [1] * (g + 1))
