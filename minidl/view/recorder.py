"""Records one step while it runs. Recording costs time: on the wall clock a recorded step is slower than others.

Whenever work is issued to the device, the recorder reads the arena's list of blocks and records the changes. The
device's methods are wrapped during the step, and no other code knows of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from minidl.device.beside import BESIDE
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, VirtualClock
from minidl.device.cpu.workers import WorkerStreams
from minidl.device.cuda.streams import EventStreams
from minidl.device.sim import SimDevice
from minidl.memory.allocator import storage_of
from minidl.memory.storage import RECOMPUTE, SWAPPING_IN, SWAPPING_OUT, Storage, TensorId
from minidl.memory.tracker import GRADIENT_ID
from minidl.parts.slicing.slicer import slicer_of
from minidl.runtime import Runtime
from minidl.view.recorded import Recorded, SeenTensor
from minidl.view.recording import EventKind, Fate, Stay, StayState, WorkEvent

Place = tuple[int, int, StayState]  # (position of the tensor among the subjects, bytes, state of the bytes)
Measured = WorkerStreams | EventStreams  # clocks on real time
SCRATCH = -(1 << 50)  # ids below it are temporary values of replays
STATES = {SWAPPING_OUT: StayState.LEAVING, SWAPPING_IN: StayState.ARRIVING}


@dataclass(frozen=True, slots=True)
class _Noted:
    """An event whose times may not be known yet:
    its work has the positions ``first`` to ``last`` in the queue ``stream``."""

    kind: EventKind
    op: str
    call: int
    subject: int
    nbytes: int
    stream: int
    positions: tuple[int, int]
    span: tuple[float, float] | None
    used_bytes: int
    largest_bytes: int
    host_bytes: int
    workspace: tuple[int, int]
    exchange: int = 0  # its number, if it runs beside the compute stream


class StepRecorder:
    """Records one step: run it inside ``with recorder.recording():``, then read ``recorded``."""

    def __init__(self, runtime: Runtime) -> None:
        self.recorded: Recorded | None = None
        self._runtime = runtime
        self._device = runtime.device
        self._exchanging = runtime.device.exchanging
        self._memory = runtime.memory
        self._tracker = runtime.tracker

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the step that runs inside, which must be one iteration."""
        runtime, device = self._runtime, self._device
        wrapped: dict[str, Callable[..., Any]] = {
            "launch": self._launching(device.launch), "move": self._moving(device.move),
            "copy_out": self._copying(device.copy_out, COPY_OUT), "copy_in": self._copying(device.copy_in, COPY_IN)}
        keeps_trace, runtime.keeps_trace = runtime.keeps_trace, True
        if isinstance(device.clock, Measured):
            device.settle()
            device.clock.measure()
        if isinstance(device, SimDevice):
            device.beside.spans = {}
        self._begin()
        for name, verb in wrapped.items():
            setattr(device, name, verb)
        try:
            yield
            self.recorded = self._finish()
        finally:
            for name in wrapped:
                delattr(device, name)
            runtime.keeps_trace = keeps_trace
            if isinstance(device.clock, Measured):
                device.clock.measure(False)
            if isinstance(device, SimDevice):
                device.beside.spans = None

    def _begin(self) -> None:
        """Delete all records, and start from the arena's present contents."""
        self._iteration = self._tracker.iteration
        self._began = self._device.now()
        self._began_s = self._began if isinstance(self._device.clock, VirtualClock) else self._device.host_now()
        self._owners: dict[weakref.ref[Storage], int] = {}  # kept, so that no new owner gets the same reference
        self._refs: list[weakref.ref[Storage]] = []
        self._rows: list[SeenTensor] = []
        self._places: dict[int, tuple[Place, int]] = {}  # by address: (place, the event at which it appeared)
        self._events: list[_Noted] = []
        self._stays: list[Stay] = []
        self._backward: set[TensorId] = set()
        self._scratch = 0
        self._launched = -1  # the last launched call

    # The verbs -----------------------------------------------------------------------------------------------
    def _launching(self, launch: Callable[..., int]) -> Callable[..., int]:
        def noted(op_name: str, algorithm: Any, outputs: Any, inputs: Any, attrs: Any, workspace: int,
                  *timed: Any) -> int:
            self._require_this_iteration()
            replayed = not self._tracker.keep_log
            slicer = slicer_of(self._runtime.executor)
            graded = slicer.origins.graded if slicer is not None else self._runtime.executor.grad_enabled
            if not graded and not replayed:
                self._backward.update(output.tensor_id for output in outputs)
            self._record_arena()
            before = self._before(COMPUTE)
            position = launch(op_name, algorithm, outputs, inputs, attrs, workspace, *timed)
            beside = self._exchanging.in_use.latest if self._exchanging is not None and op_name in BESIDE else 0
            subject = self._subject(outputs[0].base) if outputs else -1
            lent = (workspace, algorithm.workspace) if algorithm.workspace else (0, 0)
            self._note(EventKind.REPLAY if replayed else EventKind.CALL, op_name, subject, 0, COMPUTE, before, lent,
                       beside)
            return position
        return noted

    def _copying(self, copy: Callable[..., int], stream: int) -> Callable[..., int]:
        """Return ``copy``, the device's copy_out or copy_in, wrapped so that each copy is recorded, on ``stream``."""
        def noted(*arguments: Any) -> int:
            self._require_this_iteration()
            out = stream == COPY_OUT
            subject = self._record_arena(arguments[1 if out else 0], StayState.LEAVING if out else StayState.ARRIVING)
            before = self._before(stream)
            position = copy(*arguments)
            self._note(EventKind.COPY_OUT if out else EventKind.COPY_IN, "", subject, arguments[2], stream, before)
            return position
        return noted

    def _moving(self, move: Callable[..., int]) -> Callable[..., int]:
        def noted(to: int, origin: int, nbytes: int) -> int:
            self._require_this_iteration()
            subject = self._record_arena(to)
            before = self._before(COMPUTE)
            position = move(to, origin, nbytes)
            self._note(EventKind.MOVE, "", subject, nbytes, COMPUTE, before)
            return position
        return noted

    def _call(self) -> int:
        """Return the position in the iteration of the current call, or of the next if the last has been launched."""
        return max(self._launched + 1, self._tracker.sequence - self._tracker.iteration_start)

    def _require_this_iteration(self) -> None:
        """Discard the events recorded so far if a new iteration has begun since."""
        if self._tracker.iteration != self._iteration:
            self._begin()

    def _before(self, stream: int) -> tuple[int, float]:
        clock = self._device.clock
        return self._device.positions[stream], clock.busy[stream] if isinstance(clock, VirtualClock) else 0.0

    def _note(self, kind: EventKind, op: str, subject: int, nbytes: int, stream: int,
              before: tuple[int, float], workspace: tuple[int, int] = (0, 0), exchange: int = 0) -> None:
        clock, arena, last = self._device.clock, self._memory.arena, self._device.positions[stream]
        span = None
        if isinstance(clock, VirtualClock):  # its times are known at once, and deleted at the iteration's end
            end = clock.finish_time(stream, last)
            span = end - (clock.busy[stream] - before[1]), end
        call = self._call()
        if kind is EventKind.CALL:
            self._launched = call
        self._events.append(_Noted(kind, op, call, subject, nbytes, stream, (before[0] + 1, last), span,
                                   arena.used_bytes, arena.largest_free, self._memory.allocator.host.used_bytes,
                                   workspace, exchange))

    # The arena -----------------------------------------------------------------------------------------------
    def _subject(self, storage: Storage) -> int:
        found = self._owners.get(storage.me)
        if found is None:
            found = self._owners[storage.me] = len(self._rows)
            tensor_id = storage.tensor_id
            if tensor_id == -1 and not storage.persistent:  # scratch of a replay, which all have this id
                self._scratch += 1
                tensor_id = SCRATCH - self._scratch
            self._refs.append(storage.me)
            self._rows.append(SeenTensor(tensor_id, storage.nbytes, storage.persistent, tensor_id in self._backward,
                                   _owner(storage)))
        return found

    def _record_arena(self, at: int = -1, state: StayState | None = None) -> int:
        """Record the arena's changes since the last event; return the index in ``Recorded.tensors`` of the tensor at
        address ``at``, -1 if no tensor is there. state: the new state of its bytes, which are about to be copied."""
        now, event = {}, len(self._events)
        for block in self._memory.arena.blocks():
            if block.owner is None:
                continue
            storage = storage_of(block)
            assert storage is not None, "a block whose owner no longer exists"
            kept = state if state is not None and block.offset == at else STATES.get(storage.status, StayState.HERE)
            now[block.offset] = (self._subject(storage), block.size, kept)
        before = self._places
        here = {place[0] for place in now.values()}
        for offset in [offset for offset, (place, _) in before.items() if now.get(offset) != place]:
            place, first = before.pop(offset)
            if first < event:  # otherwise no work was issued while it existed
                subject, size, kept = place
                follows = now.get(offset)
                fate = (Fate.CHANGED if follows is not None and follows[0] == subject else
                        Fate.MOVED if subject in here else self._fate_of(subject))
                self._stays.append(Stay(subject, offset, size, kept, first, event, fate))
        for offset, place in now.items():
            if offset not in before:
                before[offset] = place, event
        return now[at][0] if at in now else -1

    def _fate_of(self, subject: int) -> Fate:
        storage = self._refs[subject]()
        if storage is None:
            return Fate.FREED
        if storage.block is not None:  # it keeps its block until the call that overwrites it has been launched
            return Fate.OVERWRITTEN
        if storage.status is not RECOMPUTE:
            return Fate.SWAPPED
        return Fate.DROPPED if storage.me in self._memory.state.dropped else Fate.FREED

    # The end -------------------------------------------------------------------------------------------------
    def _finish(self) -> Recorded:
        trace = self._runtime.last_trace
        assert trace is not None
        device, arena = self._device, self._memory.arena
        self._record_arena()
        device.settle()
        self._events.append(_Noted(EventKind.BOUNDARY, "", len(trace.calls), -1, 0, COMPUTE, (0, 0), None,
                                   arena.used_bytes, arena.largest_free, self._memory.allocator.host.used_bytes,
                                   (0, 0)))
        stays = [*self._stays, *(Stay(subject, offset, size, kept, first, len(self._events), Fate.STAYS)
                                 for offset, ((subject, size, kept), first) in self._places.items())]
        stays.sort(key=lambda stay: (stay.first, stay.offset))
        # A tensor that has outlived its iteration as a parameter's gradient is named after the parameter.
        owners = {n: _owner(storage) for n, ref in enumerate(self._refs) if (storage := ref()) is not None}
        seen = tuple(replace(row, owner=owners.get(n) or row.owner) for n, row in enumerate(self._rows))
        return Recorded(trace, seen, tuple(self._timed()), tuple(stays), self._began_s)

    def _timed(self) -> Iterator[WorkEvent]:
        """Yield the events with their times, in seconds from the beginning."""
        clock, now = self._device.clock, 0.0
        spans = clock.spans if isinstance(clock, Measured) else None
        exchanged = self._exchanging.spans or {} if self._exchanging is not None else {}
        free = 0.0  # when the compute stream has finished its work so far
        for noted in self._events:
            start, end = noted.span or (self._began + free, self._began + free)
            if spans is not None and noted.kind is not EventKind.BOUNDARY:
                works = [spans[noted.stream][p] for p in range(noted.positions[0], noted.positions[1] + 1)
                         if p in spans[noted.stream]]
                if works:
                    start, end = works[0][0], works[-1][1]
            start, end = exchanged.get(noted.exchange, (start, end))
            start, end = start - self._began, end - self._began
            if noted.stream == COMPUTE and not noted.exchange:
                now, free = max(now, start), max(free, end)
            else:
                now = max(now, free)
            yield WorkEvent(noted.kind, noted.op, noted.call, noted.subject, noted.nbytes, start, end, now,
                        noted.used_bytes, noted.largest_bytes, noted.host_bytes, noted.workspace)


def _owner(storage: Storage) -> TensorId:
    """Return the id of the parameter whose gradient a storage has become at its iteration's end, or 0."""
    owner = GRADIENT_ID - storage.tensor_id
    return owner if owner < 0 else 0
