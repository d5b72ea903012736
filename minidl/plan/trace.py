"""The record of one iteration, as frozen plain data: calls, accesses, allocations and frees. Knows no storages.

A call's accesses share its time; they are ordered by sequence number. Replays and copies are not part of a trace, which
records the program's own calls: it is the same under every policy and on every device (times and workspaces aside).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from minidl.meta import Algorithm
from minidl.outside.shown import Shown
from minidl.outside.units import format_bytes

TensorId = int


@dataclass(frozen=True, slots=True)
class TraceTensor:
    """A tensor of the iteration: bytes, and whether it outlives it (parameters, buffers, optimizer state).

    idle  of what was there before the first iteration: how many calls before it (an initialisation's) it was last used,
          where that is known, which only running the trace again needs to know.
    """

    tensor_id: TensorId
    nbytes: int
    persistent: bool
    idle: int = 0


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call. ``seconds`` is device time; ``frees`` are the tensors whose last use went with it.

    writes      inputs that were written in place.
    donated     pairs (output id, input id): the output took over the input's bytes.
    may_donate  pairs for which the operation allows that, and whose bytes coincide.
    replayable  the same inputs give the same outputs again.

    Beside what the program asked for, four facts that only running the trace again needs (``report.recording``):

    saves       what it keeps for its gradient, of its inputs and outputs.
    takes       earlier calls, by position, whose gradient is taken before this one: they keep nothing any more.
    leaves      tensors whose lineage is cut before this one: gradients that have reached their parameter.
    long_lived  its outputs usually outlive the activations.
    """

    op: str
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    seconds: float
    algorithms: tuple[Algorithm, ...]
    frees: tuple[TensorId, ...]
    donated: tuple[tuple[TensorId, TensorId], ...] = ()
    may_donate: tuple[tuple[TensorId, TensorId], ...] = ()
    writes: tuple[TensorId, ...] = ()
    replayable: bool = True
    saves: tuple[TensorId, ...] = ()
    takes: tuple[int, ...] = ()
    leaves: tuple[TensorId, ...] = ()
    long_lived: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """One use of a tensor by an operation; producing it is access 1. ``time_s`` is on the stall-free timeline."""

    tensor_id: TensorId
    access_count: int
    call: int
    time_s: float


@dataclass(frozen=True, repr=False)
class Trace(Shown):
    """One iteration: its calls in program order, and the tensors they name.

    observed_seconds  of the measured iterations, waits and replays included, their median; None: not known. It says how
                      the iteration was carried out, and is no part of what it is.
    windows           the only gaps that a plan may use: tensor -> the calls of two accesses, one after the other,
                      between which its bytes may leave. A tensor that is not named stays. None: all gaps may be used.
    """

    calls: tuple[TraceCall, ...]
    tensors: dict[TensorId, TraceTensor]
    observed_seconds: float | None = field(default=None, compare=False)
    windows: Mapping[TensorId, tuple[int, int]] | None = None

    def facts(self) -> dict[str, str]:
        """The trace in numbers, for ``repr``; ``lasting`` are the bytes that outlive the iteration."""
        lasting = format_bytes(sum(t.nbytes for t in self.tensors.values() if t.persistent))
        return {"calls": str(len(self.calls)), "tensors": str(len(self.tensors)), "seconds": f"{self.seconds:.6g}",
                "lasting": lasting}

    def may_leave(self, tensor_id: TensorId, after: int, until: int) -> bool:
        """Whether a tensor's bytes may leave between the calls of two accesses that follow one another."""
        return self.windows is None or self.windows.get(tensor_id) == (after, until)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """The tensor access list, in order of sequence number: a call's inputs, then its outputs."""
        counts: dict[TensorId, int] = {}
        accesses = []
        time_s = 0.0
        for position, call in enumerate(self.calls):
            for tensor_id in dict.fromkeys((*call.inputs, *call.outputs)):
                counts[tensor_id] = counts.get(tensor_id, 0) + 1
                accesses.append(Access(tensor_id, counts[tensor_id], position, time_s))
            time_s += call.seconds
        return tuple(accesses)

    @cached_property
    def uses(self) -> dict[TensorId, list[int]]:
        """Tensor -> the calls that access it, in order: its n-th access is by the n-th of them."""
        found: dict[TensorId, list[int]] = {}
        for access in self.accesses:
            found.setdefault(access.tensor_id, []).append(access.call)
        return found

    def same_calls(self, other: "Trace") -> bool:
        """True if both are of one program: the same operations on tensors of the same ids and sizes, in this order."""
        def what(trace: Trace) -> list[object]:
            return [(call.op, call.inputs, call.outputs,
                     [trace.tensors[tensor_id].nbytes for tensor_id in (*call.inputs, *call.outputs)])
                    for call in trace.calls]
        return len(self.calls) == len(other.calls) and what(self) == what(other)

    @cached_property
    def seconds(self) -> float:
        """Length of the stall-free timeline."""
        return sum(call.seconds for call in self.calls)


def scaled(algorithms: tuple[Algorithm, ...], factor: float) -> tuple[Algorithm, ...]:
    """The same with all their seconds multiplied; the same object for a factor of 1, that of modelled times."""
    return algorithms if factor == 1.0 else tuple(replace(a, seconds=a.seconds * factor) for a in algorithms)


def typical(traces: Sequence[Trace]) -> Trace:
    """The last of several traces of the same calls, with each call's median duration.

    What other work on the machine adds to a call now and then is not in it. A call may have been carried out by
    different algorithms in different iterations: what is compared is its speed against the modelled one. Calls that add
    up to more than the iterations took are scaled down to that.
    """
    if len(traces) == 1:
        return traces[0]
    calls = []
    for same in zip(*(trace.calls for trace in traces), strict=True):
        last = same[-1]
        now = last.algorithms[0].seconds
        factor = median(call.algorithms[0].seconds for call in same) / now if now else 1.0
        calls.append(replace(last, seconds=last.seconds * factor, algorithms=scaled(last.algorithms, factor)))
    observed = [trace.observed_seconds for trace in traces if trace.observed_seconds is not None]
    took, computed = median(observed) if observed else None, sum(call.seconds for call in calls)
    if took is not None and computed > took:  # each call was disturbed now and then, and all of them never together
        share = took / computed
        calls = [replace(call, seconds=call.seconds * share, algorithms=scaled(call.algorithms, share))
                 for call in calls]
    return Trace(tuple(calls), traces[-1].tensors, took, traces[-1].windows)
