"""Hand-made traces of networks: a chain of named layers and its gradients, with small whole sizes and times."""

from __future__ import annotations

from collections.abc import Sequence

from made_traces import UNIT

from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.policies.literature.network import IterationNetwork

LINK = Costs(1.0 / UNIT, 1.0 / UNIT, 0.0)  # one unit takes a second each way
AMPLE = Limits(1000 * UNIT, 1000 * UNIT)


def units(device: float, host: float = 1000) -> Limits:
    return Limits(round(device * UNIT), round(host * UNIT))


def call(op: str, reads: Sequence[int], makes: Sequence[int], seconds: float, frees: Sequence[int] = ()) -> TraceCall:
    return TraceCall(op, tuple(reads), tuple(makes), seconds, (Algorithm("", seconds),), tuple(frees),
                     replayable=op != "upload")


def layers(*ops: str, seconds: float = 10.0, sizes: Sequence[float] = ()) -> Trace:
    """Return the trace of a chain of layers and its backward pass.

    x[0] is uploaded, and layer i (call i) makes x[i] from x[i - 1], for i = 1..n. Call n + 1 makes the gradient g of
    x[n]; then the gradient of layer i, for i = n..1 by call 2n + 2 - i, reads x[i - 1] and g and makes the next g. All
    calls take the same time, and tensors have one unit unless ``sizes`` (of the x, in order) says otherwise.
    """
    n = len(ops)
    calls = [call("upload", (), (0,), seconds)]
    calls += [call(op, (i - 1,), (i,), seconds) for i, op in enumerate(ops, 1)]
    calls.append(call("cross_entropy_grad", (n,), (n + 1,), seconds, (n,)))
    for i in range(n, 0, -1):
        g = 2 * n + 1 - i
        calls.append(call(f"{ops[i - 1]}_grad", (i - 1, g), (g + 1,), seconds, (i - 1, g, *((g + 1,) * (i == 1)))))
    size = dict(enumerate(sizes))
    return Trace(tuple(calls), {t: TraceTensor(t, round(size.get(t, 1) * UNIT), False) for t in range(2 * n + 2)})


def network(*ops: str, seconds: float = 10.0, sizes: Sequence[float] = ()) -> IterationNetwork:
    return IterationNetwork.of(layers(*ops, seconds=seconds, sizes=sizes), LINK)
