"""The record of one iteration, as frozen plain data: calls, accesses, allocations and frees.

Accesses of one call have the same time; inputs come before outputs. A trace records the program's own calls, neither
replays nor copies, so every policy gives the same calls. Devices may not: their algorithms differ, and where the CPU
runs an LSTM as one call, a GPU composes it of several."""

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
    """A tensor of the iteration: its bytes, and whether it is persistent (parameters, buffers, optimizer state).

    idle  for a tensor from before the first iteration: the number of calls between its last use and the iteration, or 0
          if unknown. Only running the trace again uses it."""

    tensor_id: TensorId
    nbytes: int
    persistent: bool
    idle: int = 0


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call. ``seconds`` is device time; ``frees`` are the tensors freed after the call.

    algorithms  the algorithms that the call may use; ``seconds`` is the time of the one that ran.
    writes      inputs that the call writes in place.
    donated     pairs (output id, input id): the program donated the input, and the output took its bytes.
    may_donate  pairs for which the operation allows donation and the sizes agree.
    replayable  True if the same inputs give the same outputs again.
    leaves      tensors whose lineage is cut before this call: gradients that have reached their parameter.

    Three facts serve only to run the trace again (``report.recording``):

    saves       inputs and outputs that the call keeps for its gradient.
    takes       positions of earlier calls whose gradient is computed before this call; they keep nothing after that.
    long_lived  True if its outputs usually outlive the activations."""

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
    """One use of a tensor by a call: the ``access_count``-th in the iteration; the call that makes it counts as 1.

    call: the position of the call in the iteration. time_s: when the call starts, in seconds without stalls."""

    tensor_id: TensorId
    access_count: int
    call: int
    time_s: float


@dataclass(frozen=True, repr=False)
class Trace(Shown):
    """One iteration: its calls in program order, and their tensors.

    observed_seconds  median duration of the measured iterations, waits and replays included; None if unknown. It does
                      not count in comparisons of traces.
    windows           the only gaps that a plan may use: tensor -> the calls of two consecutive accesses between which
                      it may leave the device. Other tensors stay. None: a plan may use all gaps."""

    calls: tuple[TraceCall, ...]
    tensors: dict[TensorId, TraceTensor]
    observed_seconds: float | None = field(default=None, compare=False)
    windows: Mapping[TensorId, tuple[int, int]] | None = None

    def facts(self) -> dict[str, str]:
        """The trace in numbers, for ``repr``; ``lasting``: the bytes of tensors that outlive the iteration."""
        lasting = format_bytes(sum(t.nbytes for t in self.tensors.values() if t.persistent))
        return {"calls": str(len(self.calls)), "tensors": str(len(self.tensors)), "seconds": f"{self.seconds:.6g}",
                "lasting": lasting}

    def may_leave(self, tensor_id: TensorId, after: int, until: int) -> bool:
        """True if a tensor may leave the device between two consecutive accesses.
        after, until: the calls that make these accesses."""
        return self.windows is None or self.windows.get(tensor_id) == (after, until)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """The tensor access list, call after call: the call's inputs, then its outputs, each tensor once."""
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
        """A map from each tensor to the calls that access it: its n-th access is by the n-th call of the list."""
        found: dict[TensorId, list[int]] = {}
        for access in self.accesses:
            found.setdefault(access.tensor_id, []).append(access.call)
        return found

    @cached_property
    def first_accesses(self) -> dict[int, tuple[TensorId, int]]:
        """A map from each call to the key of its first access: the tensor, and the access's number from 1."""
        found: dict[int, tuple[TensorId, int]] = {}
        for access in self.accesses:
            found.setdefault(access.call, (access.tensor_id, access.access_count))
        return found

    def same_calls(self, other: "Trace") -> bool:
        """True if both traces have the same operations, on tensors of the same ids and sizes, in the same order."""
        def what(trace: Trace) -> list[object]:
            return [(call.op, call.inputs, call.outputs,
                     [trace.tensors[tensor_id].nbytes for tensor_id in (*call.inputs, *call.outputs)])
                    for call in trace.calls]
        return len(self.calls) == len(other.calls) and what(self) == what(other)

    @cached_property
    def seconds(self) -> float:
        """Seconds of all calls together, without stalls."""
        return sum(call.seconds for call in self.calls)


def scaled(algorithms: tuple[Algorithm, ...], factor: float) -> tuple[Algorithm, ...]:
    """Return the algorithms with their seconds multiplied by ``factor``; the same object for a factor of 1."""
    return algorithms if factor == 1.0 else tuple(replace(a, seconds=a.seconds * factor) for a in algorithms)


def typical(traces: Sequence[Trace]) -> Trace:
    """Return the last of several traces of the same calls, with each call's median duration.
    The median removes occasional disturbances by other work on the machine. A call may have used different algorithms
    in different iterations, so the median is taken of the ratio of measured to modelled time. If the calls' times then
    add up to more than the iterations took, they are scaled down to that."""
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
    if took is not None and computed > took:  # calls were disturbed at different times, so their medians add up to more
        share = took / computed
        calls = [replace(call, seconds=call.seconds * share, algorithms=scaled(call.algorithms, share))
                 for call in calls]
    return Trace(tuple(calls), traces[-1].tensors, took, traces[-1].windows)
