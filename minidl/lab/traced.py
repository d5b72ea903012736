"""Runs a trace as a program: the engine executes its calls one by one, on a simulated device that knows their seconds.

Nothing of the engine is replaced. Each call of the trace becomes an operation whose results have the sizes that the
trace says, whose algorithms are those of the trace, and whose tensors live as long as they did. So policies and memory
see what they saw when the traced program ran: the trace of a network of minidl, run again, takes the same seconds and
copies the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from weakref import ref

from minidl.context import current
from minidl.device.clock import Timed
from minidl.device.contract import Operand
from minidl.device.profiles import Profile
from minidl.device.sim import SimDevice
from minidl.errors import UserError
from minidl.memory.storage import Call, Storage
from minidl.memory.tracker import LONGEST
from minidl.meta import Algorithm, Cost, Meta, meta, uint8
from minidl.op import READ, Attrs, Op
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor

POSITION = "call"  # the attribute of each operation: its position in the trace


@dataclass(frozen=True, eq=False)
class TracedOp(Op):
    """The operation that stands for one call of a trace. saved: positions of operands kept for the call's gradient."""

    saved: tuple[int, ...] = ()
    makes_leaves: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", ())

    def saved_indices(self, attrs: Attrs, needs: tuple[bool, ...], n_inputs: int) -> tuple[int, ...]:
        """Return the positions of the operands that the trace's call keeps for its gradient."""
        return self.saved


class TracedDevice(SimDevice):
    """A simulated device on which each call takes its seconds in the trace. noise: the largest random relative error.
    """

    def __init__(self, profile: Profile, trace: Trace, *, noise: float = 0.0, seed: int = 0) -> None:
        super().__init__(f"sim:{profile.name}", profile, self._ways)
        self._calls = trace.calls
        self._reads = {trace.tensors[call.inputs[0]].nbytes: call.algorithms for call in trace.calls
                       if call.op == READ.name and call.inputs}
        self._noise, self._chance = noise, Random(seed)

    def _ways(self, op: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
              cost: Cost) -> tuple[Algorithm, ...]:
        return self._calls[attrs[POSITION]].algorithms if POSITION in attrs else self._reads[inputs[0].nbytes]

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Launch a call as ``SimDevice.launch`` does; its seconds get a random relative error of at most ``noise``."""
        if self._noise:
            factor = 1.0 + self._noise * (2.0 * self._chance.random() - 1.0)
            algorithm = Algorithm(algorithm.name, algorithm.seconds * factor, algorithm.workspace, algorithm.bits_class)
        return super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)


class TracedProgram:
    """A program that makes the calls of a trace in the current runtime, as often as wanted, on a ``TracedDevice``.

    ``handles`` are the tensors that the program holds between two calls. A tensor that no call makes, and that is not
    persistent, is a survivor of an earlier iteration: a survivor of the same size of this iteration takes its place.
    """

    def __init__(self, trace: Trace) -> None:
        """Make the tensors that exist before the iteration. Raises UserError for a trace that no program can have."""
        check(trace)
        self.trace = trace
        self._metas = {t.tensor_id: meta((t.nbytes,), uint8) for t in trace.tensors.values()}
        replays = any(call.replayable for call in trace.calls)
        self._ops = [_operation(trace, n, self._metas, replays=replays) for n in range(len(trace.calls))]
        self._ends = [tuple(dict.fromkeys(call.frees)) for call in trace.calls]
        self._made = {tensor_id for call in trace.calls for tensor_id in call.outputs}
        self._read = {tensor_id for call in trace.calls for tensor_id in call.inputs}
        self._arriving = [t for t in trace.tensors.values()
                          if not t.persistent and t.tensor_id not in self._made and t.tensor_id in self._read]
        self._calls: list[ref[Call] | None] = []
        self.handles: dict[TensorId, Storage] = {}
        lasting = [t for t in trace.tensors.values() if t.persistent]
        numbered = all(t.tensor_id < 0 for t in lasting)
        for tensor in sorted(lasting, key=lambda t: -t.tensor_id):
            storage = current().leaf(self._metas[tensor.tensor_id], persistent=True)
            if numbered:
                storage.tensor_id = tensor.tensor_id
            self.handles[tensor.tensor_id] = storage
        self._look_used(lasting)

    def _look_used(self, lasting: Sequence[TraceTensor]) -> None:
        """Set, for the tensors that exist before the trace, when earlier calls last used them.
        The order of eviction in the first iteration depends on it."""
        executor, tracker = current(), current().tracker
        tracker.sequence = executor.issued = max((t.idle for t in lasting), default=0)
        tracker.iteration_start = tracker.sequence + 1
        for tensor in sorted((t for t in lasting if t.idle), key=lambda t: -t.idle):
            self.handles[tensor.tensor_id].last_access = tracker.sequence - tensor.idle

    def step(self) -> None:
        """Run one iteration: all calls of the trace."""
        self._begin()
        for position in range(len(self._ops)):
            self._run(position)
        self._calls.clear()

    def _begin(self) -> None:
        left = [tensor_id for tensor_id in self.handles if tensor_id in self._made]
        for tensor in self._arriving:
            if tensor.tensor_id in self.handles:
                continue
            same = next((other for other in left if self.trace.tensors[other].nbytes == tensor.nbytes), None)
            if same is None:
                self.handles[tensor.tensor_id] = current().leaf(self._metas[tensor.tensor_id], persistent=False)
            else:
                left.remove(same)
                self.handles[tensor.tensor_id] = self.handles.pop(same)
        for tensor_id in left:
            self.handles.pop(tensor_id).release()

    def _run(self, position: int) -> None:
        executor, call = current(), self.trace.calls[position]
        for earlier in call.takes:
            self._take(earlier)
        for tensor_id in call.leaves:
            if tensor_id in self.handles:
                executor.make_leaf(self.handles[tensor_id])
        made: ref[Call] | None = None
        if call.op == READ.name and not call.outputs and len(call.inputs) == 1:
            executor.read(self.handles[call.inputs[0]])
        else:
            made = self._call(position, call)
        self._calls.append(made)
        for tensor_id in self._ends[position]:
            storage = self.handles.pop(tensor_id, None)
            if storage is not None:
                storage.release()

    def _call(self, position: int, call: TraceCall) -> ref[Call] | None:
        executor, op = current(), self._ops[position]
        inputs = tuple([self.handles[tensor_id] for tensor_id in call.inputs])
        ending = set(self._ends[position])
        over = {i for _, i in call.donated if i in ending}
        given = sum(1 << n for n, tensor_id in enumerate(call.inputs) if tensor_id in over)
        wanted = inputs[0].requires_grad if inputs else False
        executor.grad_enabled = bool(op.saved)
        if op.saved:
            inputs[0].requires_grad = True
        try:
            outputs = executor.run(op, inputs, {POSITION: position}, given)
        finally:
            executor.grad_enabled = True
            if op.saved:
                inputs[0].requires_grad = wanted
        for tensor_id, storage in zip(call.outputs, outputs, strict=True):
            storage.requires_grad = False
            self.handles[tensor_id] = storage
        kept = outputs[0].call if op.saved and outputs else None
        return None if kept is None else ref(kept)

    def _take(self, position: int) -> None:
        """Release what call number ``position`` of the trace kept for its gradient: the next call computes it."""
        made = self._calls[position]
        call = None if made is None else made()
        if call is not None:
            call.forget()


def _operation(trace: Trace, position: int, metas: dict[TensorId, Meta], *, replays: bool) -> TracedOp:
    """Return the operation for a call. replays: False if no call of the trace may run again: then nothing is a leaf."""
    call = trace.calls[position]
    outputs = tuple(metas[tensor_id] for tensor_id in call.outputs)
    donates = tuple((call.outputs.index(o), call.inputs.index(i)) for o, i in call.may_donate
                    if o in call.outputs and i in call.inputs)
    written = tuple(n for n, tensor_id in enumerate(call.inputs) if tensor_id in call.writes)
    replayable = call.replayable or bool(written)
    operands = (*call.inputs, *call.outputs)
    saved = tuple(operands.index(tensor_id) for tensor_id in call.saves if tensor_id in operands)
    return TracedOp(
        call.op, infer=lambda *inputs, **attrs: outputs, cost=lambda inputs, outputs, attrs: Cost(0.0, 0.0, "copy"),
        vjp=_no_gradient if saved else None, donates=donates, mutates=(lambda count: written) if written else None,
        long_lived=call.long_lived, replayable=replayable, makes_leaves=replays and not replayable, exact=True,
        saved=saved if call.inputs and call.outputs and call.replayable and not written else ())


def _no_gradient(needs: Sequence[bool]) -> tuple[None, ...]:
    raise AssertionError("a trace is not differentiated")


def check(trace: Trace) -> None:
    """Raise UserError for a trace that no program can have.
    A call reads a freed tensor, writes one that is not its input, or may donate one to an output of another size; or
    there are no calls, or more than LONGEST; or no tensor takes memory, so that there is nothing to manage."""
    if not trace.calls:
        raise UserError("the trace has no calls")
    named = {tensor_id for call in trace.calls for tensor_id in (*call.inputs, *call.outputs)}
    if not any(t.nbytes and (t.persistent or t.tensor_id in named) for t in trace.tensors.values()):
        raise UserError(f"the trace has {len(trace.calls)} calls, and no tensor of theirs takes memory")
    if len(trace.calls) > LONGEST:
        raise UserError(f"the trace has {len(trace.calls)} calls, and at most {LONGEST} are noted of an iteration")
    gone: set[TensorId] = set()
    for position, call in enumerate(trace.calls):
        where = f"call {position} ({call.op})"
        if not gone.isdisjoint(call.inputs):
            raise UserError(f"{where} reads tensor {min(gone.intersection(call.inputs))}, which was freed before")
        if not set(call.writes) <= set(call.inputs):
            raise UserError(f"{where} writes tensor {min(set(call.writes) - set(call.inputs))}, which is none of its "
                            "inputs")
        for output, given in call.may_donate:
            if output in call.outputs and trace.tensors[output].nbytes != trace.tensors[given].nbytes:
                raise UserError(f"{where}: tensors {output} and {given} have different sizes, so neither can take the "
                                "other's place")
        gone.update(call.frees)
