"""Numbers on the CPU: the bytes of an arena, and the device that works on them under a clock.

A device is numerics x clock. ``Numerics`` is the one part: kernels and copies as plain functions on bytes, that know
no time. ``ArrayDevice`` gives them to a clock as effects, in stream order; which clock is up to its two variants:

    CpuDevice                  virtual time: every interleaving is deterministic, kernels take effect at their virtual
                               start and copies at their virtual end, so that a premature read always sees poison
    threads.ThreadedCpuDevice  worker threads and the wall clock

Freed bytes are poisoned, if asked for, when the streams that used them have passed: a missing wait then shows as NaN.
Knows no storages and no policy.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.device import Device, Operand, Place, Timed, place
from minidl.device.fitted import cpu_algorithms
from minidl.device.profiles import Profile
from minidl.kernels.cpu import ALGORITHMS, KERNELS
from minidl.meta import ALIGNMENT, Algorithm, Cost, Meta

if TYPE_CHECKING:
    from minidl.memory.arena import Marks
    from minidl.memory.host_pool import Extents

POISON = 0xFF  # every float of these bytes is NaN, every integer absurd
# One kernel at a time in the whole process, whatever runtimes and threads there are: kernels use all cores, and the
# thread layer beneath them aborts when two of its parallel regions meet. Copies need no part of it: they run beside.
_one_kernel = Lock()
VARIANTS = {op: {a.name: a for a in variants} for op, variants in ALGORITHMS.items()}


def aligned_bytes(nbytes: int) -> np.ndarray:
    """A byte array that starts at a multiple of the alignment: kernels then see the same alignment at any offset."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + nbytes]


class Numerics:
    """The bytes of an arena and of a host pool (sizes in bytes), and what may be done to them, at once."""

    def __init__(self, budget_bytes: int, host_bytes: int) -> None:
        self._arena = aligned_bytes(budget_bytes)
        self._host = np.empty(host_bytes, np.uint8)  # pages are taken by the system only when they are written

    def run(self, op_name: str, algorithm: Algorithm, places: Sequence[Place], attrs: dict[str, Any],
            workspace: int) -> None:
        """Run a kernel on the operands at ``places``, outputs first. Its errors carry a note with the op's name."""
        try:
            arrays = [self.array(at) for at in places]
            with _one_kernel:
                if algorithm.name:
                    scratch = self._arena[workspace:workspace + algorithm.workspace]
                    VARIANTS[op_name][algorithm.name].run(*arrays, workspace=scratch, **attrs)
                else:
                    KERNELS[op_name](*arrays, **attrs)
        except Exception as error:
            error.add_note(f"in the kernel of {op_name}")
            raise

    def move(self, to: int, origin: int, nbytes: int) -> None:
        """Copy within the arena; the ranges may overlap."""
        assert max(to, origin) + nbytes <= self._arena.size
        start = self._arena.ctypes.data
        ctypes.memmove(start + to, start + origin, nbytes)  # 8 times as fast as an overlapping NumPy assignment

    def copy_out(self, host: "Extents", offset: int) -> None:
        """Copy from the arena to pieces of the host pool."""
        for at, size in host:
            self._host[at:at + size] = self._arena[offset:offset + size]  # without the interpreter's lock
            offset += size

    def copy_in(self, offset: int, host: "Extents") -> None:
        """Copy from pieces of the host pool to the arena."""
        for at, size in host:
            self._arena[offset:offset + size] = self._host[at:at + size]
            offset += size

    def poison(self, offset: int, nbytes: int) -> None:
        """Overwrite bytes of the arena with NaN."""
        self._arena[offset:offset + nbytes].fill(POISON)

    def array(self, at: Place) -> np.ndarray:
        """The tensor that lies there, as a view of the arena."""
        start, meta = at
        itemsize = meta.dtype.itemsize
        first = start + meta.offset * itemsize
        if meta.contiguous:
            return self._arena[first:first + meta.nbytes].view(meta.dtype.name).reshape(meta.shape)
        extent = 1 + sum((d - 1) * s for d, s in zip(meta.shape, meta.strides, strict=True))
        flat = self._arena[first:first + extent * itemsize].view(meta.dtype.name)
        return as_strided(flat, meta.shape, tuple(s * itemsize for s in meta.strides))


class ArrayDevice(Device):
    """Real numbers in a bounded arena; ``poisoned`` fills it, and what is freed, with NaN (tests)."""

    has_values = True

    def __init__(self, name: str, profile: Profile, *, poisoned: bool = False) -> None:
        super().__init__(name, profile)
        self.poisoned = poisoned
        self.numerics = Numerics(0, 0)

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        self.numerics = Numerics(budget_bytes, host_bytes)
        if self.poisoned:
            self.numerics.poison(0, budget_bytes)

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        return cpu_algorithms(self.profile, op_name, inputs, outputs, attrs, cost)

    # Effects refer to the numerics, never to the device: a queue of them does not keep it alive.
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        places = [place(operand) for operand in (*outputs, *inputs)]
        effect = partial(self.numerics.run, op_name, algorithm, places, attrs, workspace)
        return self.clock.issue(COMPUTE, algorithm.seconds, effect, timed=timed)

    def move(self, to: int, origin: int, nbytes: int) -> int:
        return self.clock.issue(COMPUTE, self.move_seconds(nbytes), partial(self.numerics.move, to, origin, nbytes))

    def copy_out(self, host: "Extents", offset: int, nbytes: int) -> int:
        effect = partial(self.numerics.copy_out, host, offset)
        return self.clock.issue(COPY_OUT, self.out_seconds(nbytes), effect, at_end=True,
                                timed=self._noting(COPY_OUT, nbytes))

    def copy_in(self, offset: int, host: "Extents", nbytes: int) -> int:
        effect = partial(self.numerics.copy_in, offset, host)
        return self.clock.issue(COPY_IN, self.in_seconds(nbytes), effect, at_end=True,
                                timed=self._noting(COPY_IN, nbytes))

    def poison(self, offset: int, nbytes: int, marks: "Marks") -> None:
        if self.poisoned:
            # Stream order, not host order: kernels that were issued before the free still read these bytes.
            self._when_passed(marks, partial(self.numerics.poison, offset, nbytes))

    def _when_passed(self, marks: "Marks", effect: Callable[[], None]) -> None:
        """Carry out an effect when the streams have passed ``marks``, before anything that waits for these."""
        raise NotImplementedError

    def read(self, operand: Operand) -> np.ndarray:
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        for stream in (COPY_OUT, COPY_IN):  # what the compute stream was told to wait for, after its last launch
            self.synchronize(stream, self._waited[COMPUTE][stream])
        return self.numerics.array(place(operand)).copy()


class CpuDevice(ArrayDevice):
    """CPU numerics on the virtual clock."""

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        self.clock.host += self._launch_overhead_s
        return super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)

    def _when_passed(self, marks: "Marks", effect: Callable[[], None]) -> None:
        clock = self.clock
        clock.at(max(clock.finish_time(stream, position) for stream, position in enumerate(marks)), effect)

    def end_iteration(self) -> None:
        # Effects wait for the host's time; without this a loop that never reads a value would only queue them.
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        super().end_iteration()
