"""Finds the largest batch of a program that fits, and its speed there.

A program that takes long to trace (PyTorch's) is traced at two batches: its memory and seconds at others are predicted
by linear interpolation between these traces, and it is traced once more at the batch that is found. A network of minidl
is traced at each batch that is tried, since its calls may depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

from minidl import policies
from minidl.cli.app.bisection import largest_number
from minidl.errors import UserError
from minidl.lab import cell
from minidl.lab.cell import Machine, RankedNetwork
from minidl.lab.inferred import live_bytes
from minidl.lab.row import CellResult
from minidl.meta import Algorithm
from minidl.outside.units import UNLIMITED, format_bytes
from minidl.plan.trace import Trace, TraceCall

MOST_BATCH = 1 << 20
KNOWN_ERRORS = {  # of a profile's unmanaged speeds, against published ones (``bench.calibration``)
    "p100": "3%", "p100-cudnn": "8%", "v100": "1%", "a100": "15%", "h100": "16%", "h200": "10%"}
Load = Callable[[int], Trace]


@dataclass(frozen=True)
class Needs:
    """The memory that a training step needs, in bytes by purpose. state: optimizer state and buffers.
    activations: the rest of the peak, to which ``of`` counts the gradients that exist then, too.
    workspace: the largest workspace of any call's fastest algorithm."""

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
    """A program whose batch can be chosen."""

    def __init__(self, name: str, load: Load, batch: int, *, interpolates: bool = True,
                 network: Callable[[int], RankedNetwork] | None = None) -> None:
        """Trace the program at ``batch`` and at its double. load: called with a batch, returns the trace at it.
        interpolates: True predicts the traces at other batches from these two; False traces each of them with ``load``.
        network: for several ranks, called with a batch, returns the network that runs in place of the trace."""
        self.name, self.load, self.batch, self.interpolates, self.network = name, load, batch, interpolates, network
        self.known = {batch: load(batch), 2 * batch: load(2 * batch)}

    def at(self, batch: int) -> Trace:
        """Return the program's trace at a batch: a recorded one, or one interpolated from the two recorded ones."""
        return self._line(batch) if self.interpolates and batch not in self.known else self._taken(batch)

    def _taken(self, batch: int) -> Trace:
        if batch not in self.known:
            self.known[batch] = self.load(batch)
        return self.known[batch]

    def _line(self, batch: int) -> Trace:
        return between(self.known[self.batch], self.known[2 * self.batch], (batch - self.batch) / self.batch)

    def fitted(self, machine: Machine, policy: str, budget: int, *, steps: int | None,
               parts: int = 0) -> tuple[int, CellResult | None, str]:
        """Return the largest batch that runs, its row and the row's status; or 0, None, and why nothing fits.

        steps: iterations that must run; None: as many as a speed takes. parts: as in ``largest``. The answer may be
        too small by a 64th if iterations after the second find no room."""
        batch = self.largest(machine, policy, budget, parts=parts)
        while batch:
            row = self.row(machine, policy, budget, batch, steps)
            if row.status == "ok":
                return batch, row, row.status
            below = batch - max(1, batch // 64)  # predicted sizes may be too small again just below
            batch = self.largest(machine, policy, budget, steps=steps, parts=parts, most=below) if below else 0
        return 0, None, self._why_nothing_fits(machine, policy, budget)

    def largest(self, machine: Machine, policy: str, budget: int, *, steps: int | None = 2, parts: int = 0,
                most: int = MOST_BATCH) -> int:
        """Return the largest batch up to ``most`` with which ``steps`` iterations run in the budget, under the policy.
        parts: the answer may be too small by a share of 1 / parts; 0: it is exact."""
        lasting = sum(t.nbytes for t in self.known[self.batch].tensors.values() if t.persistent)
        if lasting > _room(machine, budget):
            return 0
        most = min(most, self.guess(peak, self.batch, UNLIMITED))
        guess = self._largest_of_each_call(budget)
        if not policies.create(policy).moves_tensors:
            guess = min(guess, self.guess(peak, self.batch, budget))
            if not self.interpolates:  # the line is another where other calls are made
                guess = self.guess(peak, -(-guess // 2), budget)

        def runs(batch: int) -> bool:
            return self._run(self.name, self.at(batch), batch, machine, policy, budget, steps).status == "ok"

        return largest_number(runs, guess=guess, most=most, parts=parts)

    def _why_nothing_fits(self, machine: Machine, policy: str, budget: int) -> str:
        needs = Needs.of(self.known[self.batch])
        if needs.parameters + needs.gradients + needs.state <= _room(machine, budget):
            return self._run(self.name, self.at(1), 1, machine, policy, budget, 2).status
        behind = f" and {format_bytes(machine.spill_bytes)} of a disk" if machine.spill_bytes else ""
        return (f"nothing fits: parameters {format_bytes(needs.parameters)}, gradients {format_bytes(needs.gradients)} "
                f"and optimizer state {format_bytes(needs.state)} do not fit {format_bytes(budget)} of the device and "
                f"{format_bytes(machine.host_memory)} of the host{behind}")

    def _largest_of_each_call(self, budget: int) -> int:
        """Return the largest batch at which the operands of each call fit the budget.

        The bytes of a call lie on a line through the two recorded batches. If the two make different calls, only those
        before and after the difference count."""
        one, two = self.known[self.batch], self.known[2 * self.batch]
        paired = list(takewhile(_alike, zip(one.calls, two.calls, strict=False)))
        if len(paired) < len(one.calls):
            paired += takewhile(_alike, zip(reversed(one.calls), reversed(two.calls), strict=False))
        found = MOST_BATCH
        for a, b in paired:
            small, large = _operands(one, a), _operands(two, b)
            if large > small:
                found = min(found, self.batch + (budget - small) * self.batch // (large - small))
        return max(1, found)

    def guess(self, need: Callable[[Trace], int], batch: int, budget: int) -> int:
        """Return the batch at which ``need(trace)`` bytes equal the budget, by a line through ``batch`` and twice it.
        """
        one, two = need(self.at(batch)), need(self.at(2 * batch))
        found = batch + int((budget - one) * batch / max(1, two - one))
        return min(MOST_BATCH, max(1, found))

    def row(self, machine: Machine, policy: str, budget: int, batch: int, steps: int | None) -> CellResult:
        """Trace the program at ``batch``, run the trace on the machine, and return the row with its speed."""
        return self._run(f"{self.name}:{batch}", self._taken(batch), batch, machine, policy, budget, steps)

    def _run(self, name: str, trace: Trace, batch: int, machine: Machine, policy: str, budget: int,
             steps: int | None) -> CellResult:
        return cell.run(name, trace, machine, policy, budget, steps=steps,
                        network=self.network(batch) if self.network is not None else None)


def peak(trace: Trace) -> int:
    """Return the peak of a trace in bytes, if nothing is evicted; workspaces are left out."""
    return max(live_bytes(trace))


def _room(machine: Machine, budget: int) -> int:
    """Return the bytes of a budget on the device and of all memory behind it."""
    return budget + machine.host_memory + machine.spill_bytes


def _alike(calls: tuple[TraceCall, TraceCall]) -> bool:
    return calls[0].op == calls[1].op


def _operands(trace: Trace, call: TraceCall) -> int:
    """Return the bytes of a call's operands, without outputs to which an input's bytes may be donated."""
    operands = {*call.inputs, *call.outputs}.difference(o for o, _ in call.may_donate)
    return sum(trace.tensors[i].nbytes for i in operands)


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
