"""Predicts the memory and seconds of a program at any batch, by linear interpolation between its traces at two batches.

So a program that takes long to trace (PyTorch's) is traced only twice, and the search for the largest batch does not
run it. The program is traced once more at the batch that is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from minidl import policies
from minidl.cli.app.bisection import largest_number
from minidl.errors import UserError
from minidl.lab import cell
from minidl.lab.cell import CellResult, Machine
from minidl.lab.inferred import live_bytes
from minidl.meta import Algorithm
from minidl.plan.trace import Trace, TraceCall

MOST_BATCH = 1 << 20
KNOWN_ERRORS = {  # of a profile's unmanaged speeds, against published ones (``bench.calibration``)
    "p100": "3%", "p100-cudnn": "8%", "v100": "1%", "a100": "15%", "h100": "16%", "h200": "10%"}
Load = Callable[[int], Trace]


@dataclass(frozen=True)
class Needs:
    """The memory that a training step needs, in bytes by purpose. state: optimizer state and buffers.
    activations: everything else at the peak. workspace: the largest workspace of any call's fastest algorithm."""

    parameters: int
    gradients: int
    state: int
    activations: int
    workspace: int

    @classmethod
    def of(cls, trace: Trace) -> Needs:
        """Return the needs of a trace, in which the tensors' roles are inferred from the order of the calls.
        Parameters are read first, and written by update calls; gradients are inputs of these calls."""
        lasting = {t.tensor_id for t in trace.tensors.values() if t.persistent}
        read, written = _first_uses(trace, lasting)
        first_step = min((at for i, at in written.items() if i in read), default=len(trace.calls))
        trained = {i for i, at in read.items() if i in written and at < first_step}
        stepped = {i for call in trace.calls if trained.intersection(call.writes) for i in call.inputs if i in written}
        steps = [at for at, call in enumerate(trace.calls) if stepped.intersection(call.writes)]
        made = {i for call in trace.calls[:min(steps, default=0)] for i in call.outputs}
        gradients = {i for at in steps for i in trace.calls[at].inputs if i in made}
        size = {i: t.nbytes for i, t in trace.tensors.items()}
        held = sum(size[i] for i in lasting)
        parameters = sum(size[i] for i in (trained or read))
        workspace = max((call.algorithms[0].workspace for call in trace.calls), default=0)
        return cls(parameters, sum(size[i] for i in gradients), held - parameters, max(live_bytes(trace)) - held,
                   workspace)


def _first_uses(trace: Trace, lasting: set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return tensor -> the first call that reads it, unless one wrote it before; and tensor -> its first writer."""
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    for at, call in enumerate(trace.calls):
        for i in lasting.intersection(call.inputs):
            if i in call.writes:
                written.setdefault(i, at)
            elif i not in written:
                read.setdefault(i, at)
    return read, written


class ProgramAtBatch:
    """A program whose batch can be chosen; its traces at other batches are predicted from those at two batches."""

    def __init__(self, name: str, load: Load, batch: int) -> None:
        """Trace the program at ``batch`` and at its double. load: called with a batch, returns the trace at it."""
        self.name, self.load, self.batch = name, load, batch
        self.known = {batch: load(batch), 2 * batch: load(2 * batch)}

    def at(self, batch: int) -> Trace:
        """Return the program's trace at a batch: a recorded one, or one interpolated from the two recorded ones."""
        return self.known[batch] if batch in self.known else self._line(batch)

    def _line(self, batch: int) -> Trace:
        return between(self.known[self.batch], self.known[2 * self.batch], (batch - self.batch) / self.batch)

    def largest(self, machine: Machine, policy: str, budget: int, *, steps: int = 2, parts: int = 0) -> int:
        """Return the largest batch with which ``steps`` iterations run in the budget, under the policy.
        parts: the answer may be too small by a share of 1 / parts; 0: it is exact."""
        guess = self.guess(peak, self.batch, budget)
        if policies.create(policy).moves_tensors:  # the largest of large batches: small ones have it in an update
            guess = self.guess(_working_set, 4 * guess, budget)

        def runs(batch: int) -> bool:
            return cell.run(self.name, self.at(batch), machine, policy, budget, steps=steps).status == "ok"

        return largest_number(runs, guess=guess, most=MOST_BATCH, parts=parts)

    def guess(self, need: Callable[[Trace], int], batch: int, budget: int) -> int:
        """Return the batch at which ``need(trace)`` bytes equal the budget, by a line through ``batch`` and twice it.
        """
        one, two = need(self.at(batch)), need(self.at(2 * batch))
        found = batch + int((budget - one) * batch / max(1, two - one))
        return min(MOST_BATCH, max(1, found))

    def row(self, machine: Machine, policy: str, budget: int, batch: int, steps: int | None) -> CellResult:
        """Trace the program at ``batch``, run the trace on the machine, and return the row with its speed."""
        return cell.run(f"{self.name}:{batch}", self.load(batch), machine, policy, budget, steps=steps)


def peak(trace: Trace) -> int:
    """Return the peak of a trace in bytes, if nothing is evicted; workspaces are left out."""
    return max(live_bytes(trace))


def _working_set(trace: Trace) -> int:
    """Return the bytes of the largest call's operands, without outputs to which an input's bytes may be donated."""
    size = {i: t.nbytes for i, t in trace.tensors.items()}
    return max(sum(size[i] for i in {*call.inputs, *call.outputs}.difference(o for o, _ in call.may_donate))
               for call in trace.calls)


def between(one: Trace, two: Trace, part: float) -> Trace:
    """Return a trace whose sizes and seconds are interpolated between ``one`` (part 0) and ``two`` (part 1).
    ``part`` may exceed 1. Raises UserError if the two traces have different calls."""
    same = len(one.calls) == len(two.calls) and all(
        (a.op, a.inputs, a.outputs, a.frees) == (b.op, b.inputs, b.outputs, b.frees)
        for a, b in zip(one.calls, two.calls, strict=True))
    if not same or one.tensors.keys() != two.tensors.keys():
        raise UserError("the program makes other calls at another batch: what it needs does not follow from two")

    def line(a: float, b: float) -> float:
        return max(0.0, a + (b - a) * part)

    tensors = {i: replace(t, nbytes=round(line(t.nbytes, two.tensors[i].nbytes))) for i, t in one.tensors.items()}
    return Trace(tuple(_call(a, b, line) for a, b in zip(one.calls, two.calls, strict=True)), tensors)


def _call(one: TraceCall, two: TraceCall, line: Callable[[float, float], float]) -> TraceCall:
    names = {algorithm.name: algorithm for algorithm in two.algorithms}
    found = [Algorithm(a.name, line(a.seconds, b.seconds), round(line(a.workspace, b.workspace)), a.bits_class)
             for a in one.algorithms if (b := names.get(a.name)) is not None]
    if not found:
        found = [Algorithm(one.op, line(one.seconds, two.seconds))]
    return replace(one, seconds=line(one.seconds, two.seconds),
                   algorithms=tuple(sorted(found, key=lambda a: (a.seconds, a.workspace))))


def share(row: CellResult) -> float:
    """Return the speed of a row as a share of the speed with unlimited memory; 0 if the row has no speed."""
    return row.unmanaged_s / (row.settled_s or inf)
