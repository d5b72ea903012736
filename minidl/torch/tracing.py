"""Converts a recorded PyTorch step into a ``Trace``, for which any policy can plan.

A tensor of the trace is a value: the contents of a storage between two writes. Besides the program's calls there are
marker calls that take no time: ``given`` marks the first use of a tensor that no recorded call made; ``let go`` the
point from which only autograd holds a saved tensor; ``brought back`` the point at which the backward pass needs this
tensor. The last two delimit the saved tensor's window, in which it may be evicted.

``Observer`` turns on and off, together, the recorder of calls, the notes of the trace, and calls' origins.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from minidl.meta import Algorithm
from minidl.plan.trace import TensorId, Trace, TraceCall, TraceTensor
from minidl.torch.backends import allocated
from minidl.torch.items import Item
from minidl.torch.lineage import Value
from minidl.torch.optimizers import gradients_of, parameters_of, state_of
from minidl.torch.origins import NOWHERE, Origin, Origins
from minidl.torch.recorder import Recorder
from minidl.torch.saved import Saved
from minidl.torch.seen import Kind, Seen
from minidl.torch.states import States
from minidl.torch.there import on_device

GIVEN, LET_GO, BROUGHT_BACK = "given", "let go", "brought back"


@dataclass
class Note:
    """A call of the trace, or a marker, while the trace is being made; its fields become those of a ``TraceCall``."""

    op: str
    inputs: list[TensorId] = field(default_factory=list)
    outputs: list[TensorId] = field(default_factory=list)
    seconds: float = 0.0
    workspace: int = 0
    frees: list[TensorId] = field(default_factory=list)
    donated: list[tuple[TensorId, TensorId]] = field(default_factory=list)
    writes: list[TensorId] = field(default_factory=list)
    again: bool = False
    order: int = 0  # its number among the calls that the recorder has seen
    origin: Origin = NOWHERE


class Notes:
    """Collects what happens in a recorded step (calls, saves, freed storages), and makes the step's trace of it."""

    def __init__(self, recorder: Recorder, lasting: list[Value], origins: Origins) -> None:
        """Begin the trace of a step. lasting: the values of the tensors that exist before the step."""
        self.recorder, self.origins = recorder, origins
        self.kinds: dict[TensorId, Kind] = {}
        self.states: dict[TensorId, tuple[int, int]] = {}
        self.calls: list[Note] = []
        self.bytes: dict[TensorId, int] = {}
        self.before: set[TensorId] = set()
        self.ended: set[TensorId] = set()
        self.given: dict[TensorId, int] = {}
        self.let_go: dict[TensorId, int] = {}
        self.back: dict[TensorId, int] = {}
        self.packs: dict[int, TensorId] = {}
        self.unpacks: list[int] = []
        self._own: weakref.WeakSet[Item] = weakref.WeakSet()  # saved in this step
        for value in lasting:
            self.before.add(self._new(value))
        self.there_bytes = sum(allocated(nbytes, recorder.device_type) for nbytes in self.bytes.values())

    def _new(self, value: Value) -> TensorId:
        number = value.number = len(self.bytes)
        self.bytes[number] = value.nbytes
        return number

    def _id(self, value: Value) -> TensorId:
        """Return the tensor id of a value; a value without an id gets a new one, and a ``given`` marker.
        So does a value whose tensor has ended: its bytes came back in a second storage."""
        if value.number is None or value.number not in self.bytes or value.number in self.ended:
            number = self._new(value)
            self.given[number] = len(self.calls)
            self.calls.append(Note(GIVEN, outputs=[number]))
        assert value.number is not None
        return value.number

    # Tensors of optimizers ------------------------------------------------------------------------------------------
    def know(self, kind: Kind, tensors: Iterable[torch.Tensor]) -> None:
        """Record that those of ``tensors`` that the step has used so far have the role ``kind``."""
        for tensor in tensors:
            value = self.recorder.held(tensor.untyped_storage()) if self.recorder.sees(tensor) else None
            if value is not None and value.number in self.bytes:
                self.kinds[value.number] = kind

    def brought(self, tensor: torch.Tensor, number: int, parts: int) -> None:
        """Note that optimizer state came to the device. number, parts: its part of the optimizer, of how many."""
        tensor_id = self._id(self.recorder.hold(tensor.untyped_storage(), None))
        self.kinds[tensor_id], self.states[tensor_id] = Kind.STATE, (number, parts)

    # Events of the recorder ------------------------------------------------------------------------------------------
    def called(self, name: str, reads: list[Value], made: list[Value], written: list[tuple[Value, Value]],
               seconds: float, again: bool, workspace: int) -> None:
        """Add a call of the program to the trace. The arguments are those of ``Listener.called``."""
        note = Note(name.removeprefix("aten::"), [self._id(value) for value in reads], seconds=seconds, again=again,
                    order=self.recorder.order, workspace=workspace, origin=self.origins.now())
        note.outputs = [self._new(value) for value in made]
        for old, new in written:
            if _is_away(old):
                # Autograd has yet to read what this call overwrites: tensors of one storage may have several version
                # counters. The copy of the old bytes comes back in another storage.
                self.let_go.setdefault(self._id(old), len(self.calls))
                note.outputs.append(self._new(new))
                continue
            if not old.fresh:
                new.number = self._id(old)
                note.writes.append(new.number)
                continue
            before, after = self._id(old), self._new(new)
            if before in self.kinds:
                self.kinds[after] = self.kinds[before]
            note.outputs.append(after)
            note.donated.append((after, before))
            note.frees.append(before)
            self.ended.add(before)
        if note.outputs or note.writes or note.inputs:
            self.calls.append(note)

    def died(self, value: Value) -> None:
        """Note that the storage of a value was freed: it was evicted, or the value is not needed any more."""
        item = value.item() if value.item is not None else None
        number = value.number
        if number is None or number not in self.bytes:
            return
        if _is_away(value):
            if number not in self.let_go:
                self.let_go[number] = self._mark(LET_GO, number)
        elif item is None or not item.handles:
            self._end(number)

    def _mark(self, op: str, number: TensorId) -> int:
        self.calls.append(Note(op, [number]))
        return len(self.calls) - 1

    def _end(self, number: TensorId) -> None:
        if number not in self.ended:
            self.ended.add(number)
            if self.calls:
                self.calls[-1].frees.append(number)

    # Events of saved tensors -----------------------------------------------------------------------------------------
    def saved(self, number: int, item: Item) -> None:
        """Note that autograd's ``number``-th saved tensor of this step is part of ``item``."""
        self._own.add(item)
        storage = item.alive()
        if item.value is None and storage is not None:
            item.value = self.recorder.held(storage) or self.recorder.hold(storage, None)
            item.value.item = weakref.ref(item)
        if item.value is not None:
            self.packs[number] = self._id(item.value)

    def wanted(self, number: int, item: Item | None, *, returned: bool) -> None:
        """Note that autograd reads a saved tensor of ``item`` (None: it stayed). returned: it had been evicted."""
        self.unpacks.append(len(self.calls))
        if item is None or not returned:
            return
        if item not in self._own:  # a graph of an earlier step
            item.value = self.recorder.hold(item.storage, None)
            self._id(item.value)
            return
        value: Any = item.value
        if value is None:
            return
        self.recorder.hold(item.storage, value)
        if value.number in self.let_go and value.number not in self.back:
            self.back[value.number] = self._mark(BROUGHT_BACK, value.number)

    def forgotten(self, item: Item) -> None:
        """Note that neither autograd nor a replay needs an item any more, so its value ends here."""
        value = item.value if item in self._own else None
        if value is None or value.number is None or value.number in self.ended:
            return
        if value.number in self.let_go and value.number not in self.back:
            self.back[value.number] = self._mark(BROUGHT_BACK, value.number)
        if value.storage is None or value.storage() is None:
            self._end(value.number)

    # The trace -------------------------------------------------------------------------------------------------------
    def seen(self) -> Seen:
        """Return the recorded step, whose calls and tensors have been noted so far."""
        # A given tensor that is still alive existed before the step and outlives it, as a parameter does.
        stays = self.given.keys() - self.ended
        self.before |= stays
        gone = {self.given[number] for number in stays}
        outlive = self.let_go.keys() - self.back.keys() - self.ended
        for number in outlive:
            self.calls[self.let_go[number]].frees.append(number)
        self._hold_to_refills()
        position, kept = [], 0
        for n in range(len(self.calls) + 1):
            position.append(kept)
            kept += n not in gone
        for n in sorted(gone, reverse=True):
            if self.calls[n].frees and n:
                self.calls[n - 1].frees += self.calls[n].frees
        calls = tuple(_call(note) for n, note in enumerate(self.calls) if n not in gone)
        stay, device = self.before - self.ended, self.recorder.device_type
        used = {i for call in calls for i in (*call.inputs, *call.outputs, *call.frees)} | (stay & self.kinds.keys())
        tensors = {i: TraceTensor(i, allocated(self.bytes[i], device), i in stay) for i in sorted(used)}
        idle = stay - used  # as one tensor, since there may be thousands
        if idle:
            tensors[min(idle)] = TraceTensor(min(idle), sum(allocated(self.bytes[i], device) for i in idle), True)
        windows = {i: (position[self.let_go[i]], position[self.back[i]]) for i in self.back}
        orders = tuple(note.order for n, note in enumerate(self.calls) if n not in gone)
        return Seen(Trace(calls, tensors, windows=windows), dict(self.packs), tuple(position[n] for n in self.unpacks),
                    orders, self.recorder.spent / max(1, self.recorder.order), dict(self.kinds),
                    {i: part for i, part in self.states.items() if i in self.ended},
                    tuple(note.origin for n, note in enumerate(self.calls) if n not in gone), frozenset(outlive),
                    self.there_bytes)

    def _hold_to_refills(self) -> None:
        """Mark as not replayable the calls with an input that is written again before the last saved tensor is read.

        For instance, FSDP frees parameters after the forward pass, and fills them anew for the backward pass. So a
        replay of these calls may find other bytes or none. The results of marked calls are swapped, not dropped.
        """
        last = max(self.back.values(), default=0)
        written = {number: n for n, note in enumerate(self.calls[:last]) for number in note.writes}
        for n, note in enumerate(self.calls[:last]):
            note.again = note.again and not any(n < written.get(number, -1) for number in note.inputs)


def _is_away(value: Value) -> bool:
    """True if autograd has saved a value, but does not hold the storage that contains the value."""
    item = value.item() if value.item is not None else None
    return item is not None and item.handles > 0 and item.storage is None


def _call(note: Note) -> TraceCall:
    return TraceCall(note.op, tuple(dict.fromkeys(note.inputs)), tuple(dict.fromkeys(note.outputs)), note.seconds,
                     (Algorithm(note.op, note.seconds, note.workspace),), tuple(dict.fromkeys(note.frees)),
                     tuple(note.donated), tuple(note.donated), tuple(dict.fromkeys(note.writes)), note.again)


class Observer:
    """Records steps, from which plans are made. notes: the current step's trace so far; None if it is not recorded."""

    def __init__(self, recorder: Recorder, saved: Saved, states: States) -> None:
        self.recorder, self.saved, self.states = recorder, saved, states
        self.origins = Origins()
        self.notes: Notes | None = None

    def begin(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Start to record the step that begins now. optimizers: those that have stepped in the last step."""
        self.recorder.enter()
        self.origins.enter()
        lasting = {Kind.PARAMETER: [t for optimizer in optimizers for t in parameters_of(optimizer)],
                   Kind.GRADIENT: [t for optimizer in optimizers for t in gradients_of(optimizer)],
                   Kind.STATE: [t for optimizer in optimizers for t in state_of(optimizer) if not self.states.waits(t)]}
        device = self.recorder.device_type
        measured = self.recorder.allocator is not None
        values = self.recorder.begin([*(t for each in lasting.values() for t in each),
                                      *(on_device(device) if measured else ())], self.saved.there())
        if measured:  # the allocator also counts what no tensor of Python has: libraries' workspaces
            self.saved.backend.settle()
            in_use = self.recorder.allocator.memory_allocated()
            values.append(Value(max(0, in_use - sum(allocated(value.nbytes, device) for value in values))))
        notes = Notes(self.recorder, values, self.origins)
        for kind, tensors in lasting.items():
            notes.know(kind, tensors)
        self.notes = self.recorder.listener = self.saved.watch = notes
        self.states.brought = notes.brought
        self.saved.forward = self._between
        self.recorder.on = True

    def _between(self, _: bool) -> None:
        """Stop recording, between two calls, a step whose gradients would have other bits under the recorder."""
        if self.recorder.unfit:
            self.recorder.leave()
            self.end()

    def end(self) -> None:
        """Stop recording, and forget the notes of the step."""
        self.notes = self.recorder.listener = self.saved.watch = self.states.brought = self.saved.forward = None
        self.origins.leave()

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """In a recorded step, note which tensors are parameters and gradients of an optimizer that is about to step."""
        if self.notes is not None:
            self.notes.know(Kind.PARAMETER, parameters_of(optimizer))
            self.notes.know(Kind.GRADIENT, gradients_of(optimizer))

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """In a recorded step, note which tensors are the state of an optimizer that has just stepped."""
        if self.notes is not None:
            self.notes.know(Kind.STATE, state_of(optimizer))
