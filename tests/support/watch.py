"""A device that watches its own use: the reads and writes of each piece of work, and their order.

Order is checked without times (``races``). Every range of bytes also carries the name of its value. From these follow
duties of any engine:

  an operation only gets tensors that have a block
  it reads each tensor's own value, wherever that has been meanwhile (no stale or half-finished copy)
  it writes only over bytes without a value, its workspace, or an input (donated, or in place)
  a copy or a move never overwrites a value

One race is allowed: writing over bytes that are being copied out spoils the copy, which may then be discarded, but
never read again. Knows operations by name, offsets and streams; knows no manager, arena, policy or plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from races import NOTHING, SPOILED, Cells, Violation, WatchedClock

from minidl import ops
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Timed
from minidl.device.contract import Device, Operand, place
from minidl.device.cpu.device import VirtualCpu
from minidl.device.profiles import Profile
from minidl.meta import ALIGNMENT, Algorithm, Meta
from minidl.op import Op
from minidl.parts.slicing import exchange

if TYPE_CHECKING:
    from minidl.device.clock import Extents, Marks

HOST_GRAIN = 4  # bytes; host copies have exact sizes, which are multiples of it
REPLACING = {"fill_", "copy_", "upload_", "normal_", "uniform_"}  # in place, without reading what was there
OPS = {op.name: op for module in vars(ops).values() if isinstance(module, ModuleType)
       for op in vars(module).values() if isinstance(op, Op)}
BETWEEN_RANKS = {op.name: op for op in vars(exchange).values() if isinstance(op, Op)}


class Order(Protocol):
    """Knowledge of the positions that streams have certainly reached."""

    @property
    def host_known(self) -> list[int]: ...

    def before(self, stream: int) -> list[int]: ...


class Watched(Device):
    """The watching part of a device, a base class before that of the device itself.

    order      knowledge of the positions that streams have certainly reached, without times
    log        all calls of the device, in order, with the times at which their work starts
    limit      the most pieces of work of a run: more mean an endless loop
    interrupt  called at every piece of work, in the middle of the engine's work, as the cycle collector may be
    """

    order: Order

    def watch(self, *, limit: int) -> None:
        """Begin to watch; call it when the device has been made."""
        self.log: list[tuple[Any, ...]] = []
        self.limit = limit
        self.interrupt: Callable[[], None] | None = None
        self._values = 0
        self._copies_out: dict[int, tuple[Extents, int]] = {}  # by position
        self._expected: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by base: the value its bytes must hold

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        super().attach(budget_bytes, host_bytes)
        self.arena = Cells("arena", budget_bytes, ALIGNMENT, self._spoil)
        self.host = Cells("host", host_bytes, HOST_GRAIN)

    # Kernels -------------------------------------------------------------------------------------------------
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        for operand in (*outputs, *inputs):
            if operand.base.block is None:
                raise Violation(f"{op_name} is given {operand}, which has no block")
        self._note(COMPUTE, op_name, algorithm.name, *(place(o)[0] for o in (*outputs, *inputs)), workspace)
        position = super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)
        stream = self.stream_of(op_name)
        op, known = OPS.get(op_name) or BETWEEN_RANKS[op_name], self._before_last(stream)
        written = set(op.mutates(len(inputs))) if op.mutates is not None else set()
        for index, operand in enumerate(inputs):
            if index not in written or op_name not in REPLACING:
                self._read(operand, stream, known, f"{op_name} (input {index})")
        for index in written:
            self._write(inputs[index], stream, known, f"{op_name} (in place)")
        over = {place(operand)[0] for operand in inputs}
        for operand in outputs:
            cells = self._cells(operand.base.block.offset, operand.meta)
            if operand.base.block.offset not in over and not self.arena.holds(cells, NOTHING):
                raise Violation(f"{op_name} writes over a value that is not its input's, at cells {cells}")
            self._write(operand, stream, known, f"{op_name} (output)")
        if algorithm.workspace:
            cells = self.arena.span(workspace, algorithm.workspace)
            if not self.arena.holds(cells, NOTHING):
                raise Violation(f"{op_name} has its workspace where a value is, at cells {cells}")
            self.arena.write(cells, stream, known, NOTHING, f"{op_name} (workspace)")
        return position

    def stream_of(self, op_name: str) -> int:
        """Return the stream on which an operation runs."""
        return COMPUTE

    def _before_last(self, stream: int) -> list[int]:
        """Return the positions that were certain before a stream's last work: it has made its waits itself, or before
        it the engine has."""
        known = list(self.order.before(stream))
        known[stream] -= 1
        return known

    def read(self, operand: Operand) -> np.ndarray:
        self._note(COMPUTE, "read", place(operand)[0])
        value = super().read(operand)
        self._read(operand, -1, self.order.host_known, "the host")
        return value

    def _cells(self, offset: int, meta: Meta) -> slice:
        extent = 1 + sum((d - 1) * s for d, s in zip(meta.shape, meta.strides, strict=True)) if meta.size else 0
        return self.arena.span(offset + meta.offset * meta.dtype.itemsize, extent * meta.dtype.itemsize)

    def _read(self, operand: Operand, stream: int, known: Sequence[int], what: str) -> None:
        offset, meta = place(operand)
        cells = self._cells(offset, meta)
        self.arena.read(cells, stream, known, what)
        value = self._expected.get(operand.base)
        if value is None or not self.arena.holds(cells, value):
            raise Violation(f"{what} reads {operand}, and finds {set(self.arena.values[cells])} instead of {value}")

    def _write(self, operand: Operand, stream: int, known: Sequence[int], what: str) -> None:
        self._values += 1
        self._expected[operand.base] = self._values
        offset, meta = place(operand)
        self.arena.write(self._cells(offset, meta), stream, known, self._values, what)

    # Copies --------------------------------------------------------------------------------------------------
    def move(self, to: int, origin: int, nbytes: int) -> int:
        self._note(COMPUTE, "move", to, origin, nbytes)
        position = super().move(to, origin, nbytes)
        arena, known = self.arena, self._before_last(COMPUTE)
        source, target = arena.span(origin, nbytes), arena.span(to, nbytes)
        value = arena.only_value(source, "a move")
        arena.read(source, COMPUTE, known, "a move")
        arena.write(source, COMPUTE, known, NOTHING, "a move")
        if not arena.holds(target, NOTHING):
            raise Violation(f"a move lands on a value, at cells {target}")
        arena.write(target, COMPUTE, known, value, "a move")
        return position

    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        self._note(COPY_OUT, "copy out", host, offset, nbytes)
        position = super().copy_out(host, offset, nbytes)
        known = self._before_last(COPY_OUT)
        source = self.arena.span(offset, nbytes)
        value = self.arena.only_value(source, "a copy out")
        self.arena.read(source, COPY_OUT, known, "a copy out")
        for at, size in host:
            self.host.write(self.host.span(at, size), COPY_OUT, known, value, "a copy out")
        self._copies_out[known[COPY_OUT] + 1] = host, value
        return position

    def _spoil(self, position: int) -> None:
        host, value = self._copies_out[position]
        for at, size in host:
            cells = self.host.span(at, size)
            if self.host.holds(cells, value):  # otherwise another copy has replaced these bytes
                self.host.values[cells] = [SPOILED] * (cells.stop - cells.start)

    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        self._note(COPY_IN, "copy in", host, offset, nbytes)
        position = super().copy_in(offset, host, nbytes)
        known = self._before_last(COPY_IN)
        target = self.arena.span(offset, nbytes)
        values = set()
        for at, size in host:
            values.add(self.host.only_value(self.host.span(at, size), "a copy in"))
            self.host.read(self.host.span(at, size), COPY_IN, known, "a copy in")
        if len(values) > 1:
            raise Violation(f"a copy in finds parts of {len(values)} values on the host")
        if not self.arena.holds(target, NOTHING):
            raise Violation(f"a copy in lands on a value, at cells {target}")
        self.arena.write(target, COPY_IN, known, values.pop() if values else NOTHING, "a copy in")
        return position

    def poison(self, offset: int, nbytes: int, marks: Marks) -> None:
        """Note that these bytes are freed: from here on, in program order, they hold no value."""
        self._note(COMPUTE, "free", offset, nbytes, *marks)
        cells = self.arena.span(offset, nbytes)
        self.arena.values[cells] = [NOTHING] * (cells.stop - cells.start)
        super().poison(offset, nbytes, marks)

    def _note(self, stream: int, *event: Any) -> None:
        self.log.append((*event, self.starts(stream)))
        if len(self.log) > self.limit:
            raise Violation(f"{self.limit} pieces of work, and no end")
        if self.interrupt is not None:
            self.interrupt()

    def starts(self, stream: int) -> float:
        """Return when work that is issued to a stream now starts."""
        return self.clock.ready[stream]


class WatchedDevice(Watched, VirtualCpu):
    """CPU numerics, poisoned, on a watched virtual clock whose work takes longer or shorter than modelled.

    draw     decides the true durations: kernels take ``1 - jitter`` to ``1 + jitter`` times the modelled time, and one
             copy in ten is delayed by up to ``stall_s`` seconds
    """

    def __init__(self, profile: Profile, draw: random.Random, *, jitter: float = 0.0, stall_s: float = 0.0,
                 limit: int = 30_000) -> None:
        super().__init__("cpu:virtual", profile, poisoned=True)
        self.order = self.clock = WatchedClock()
        self.positions = self.clock.positions
        self.watch(limit=limit)
        self._draw = draw
        self._jitter = jitter
        self._stall_s = stall_s

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        factor = 1.0 + self._jitter * (2.0 * self._draw.random() - 1.0)
        algorithm = replace(algorithm, seconds=algorithm.seconds * factor)
        return super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)

    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        self._stall(COPY_OUT)
        return super().copy_out(host, offset, nbytes)

    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        self._stall(COPY_IN)
        return super().copy_in(offset, host, nbytes)

    def _stall(self, stream: int) -> None:
        if self._stall_s and self._draw.random() < 0.1:
            self.clock.issue(stream, self._stall_s * self._draw.random())
