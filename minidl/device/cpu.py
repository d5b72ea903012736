"""CPU numerics on the virtual clock: every interleaving is deterministic, and a premature read sees poison.

The arena and the host pool are byte arrays. A kernel's effect happens at its virtual start, a copy's bytes move at
its virtual end, freed bytes are poisoned when the streams that used them have passed: so a missing wait shows as NaN
in the result instead of by luck. Knows no storages and no policy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT
from minidl.device.device import Device, Operand, Place, place
from minidl.device.profiles import Profile
from minidl.kernels.cpu import ALGORITHMS, KERNELS
from minidl.meta import ALIGNMENT, Algorithm, Cost, Meta

if TYPE_CHECKING:
    from minidl.memory.arena import Marks
    from minidl.memory.host_pool import Extents

POISON = 0xFF  # every float of these bytes is NaN, every integer absurd
VARIANTS = {op: {a.name: a for a in variants} for op, variants in ALGORITHMS.items()}


def aligned_bytes(nbytes: int) -> np.ndarray:
    """A byte array that starts at a multiple of the alignment: kernels then see the same alignment at any offset."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + nbytes]


class CpuDevice(Device):
    """Real numbers in a bounded arena; ``poisoned`` fills it, and what is freed, with NaN (tests)."""

    has_values = True

    def __init__(self, name: str, profile: Profile, *, poisoned: bool = False) -> None:
        super().__init__(name, profile)
        self.poisoned = poisoned
        self._arena = np.empty(0, np.uint8)
        self._host = np.empty(0, np.uint8)

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        self._arena = aligned_bytes(budget_bytes)
        self._host = np.empty(host_bytes, np.uint8)  # pages are taken by the system only when they are written
        if self.poisoned:
            self._arena.fill(POISON)

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        variants = ALGORITHMS.get(op_name)
        if variants is None:
            return super().algorithms(op_name, inputs, outputs, attrs, cost)
        # Variants differ in workspace; their modelled time is that of the workspace-free simulated one, scaled.
        seconds = max(a.seconds for a in super().algorithms(op_name, inputs, outputs, attrs, cost))
        plain = Algorithm("", seconds)
        return tuple(replace(plain, name=v.name, seconds=seconds * v.relative_time, bits_class=v.bits_class,
                             workspace=v.workspace(inputs, outputs, attrs)) for v in variants)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int) -> int:
        clock = self.clock
        clock.host += self._launch_overhead_s
        places = [place(operand) for operand in (*outputs, *inputs)]

        def effect() -> None:
            arrays = [self._array(at) for at in places]
            if algorithm.name:
                scratch = self._arena[workspace:workspace + algorithm.workspace]
                VARIANTS[op_name][algorithm.name].run(*arrays, workspace=scratch, **attrs)
            else:
                KERNELS[op_name](*arrays, **attrs)
        return clock.issue(COMPUTE, algorithm.seconds, effect)

    def move(self, to: int, origin: int, nbytes: int) -> int:
        def effect() -> None:
            self._arena[to:to + nbytes] = self._arena[origin:origin + nbytes]  # NumPy minds overlap
        return self.clock.issue(COMPUTE, self.move_seconds(nbytes), effect)

    def copy_out(self, host: "Extents", offset: int, nbytes: int) -> int:
        def effect() -> None:
            start = offset
            for at, size in host:
                self._host[at:at + size] = self._arena[start:start + size]
                start += size
        return self.clock.issue(COPY_OUT, self.out_seconds(nbytes), effect, at_end=True)

    def copy_in(self, offset: int, host: "Extents", nbytes: int) -> int:
        def effect() -> None:
            start = offset
            for at, size in host:
                self._arena[start:start + size] = self._host[at:at + size]
                start += size
        return self.clock.issue(COPY_IN, self.in_seconds(nbytes), effect, at_end=True)

    def poison(self, offset: int, nbytes: int, marks: "Marks") -> None:
        if self.poisoned:
            # Stream order, not host order: kernels that were issued before the free still read these bytes.
            time = max(self.clock.finish_time(stream, position) for stream, position in enumerate(marks))
            self.clock.at(time, lambda: self._arena[offset:offset + nbytes].fill(POISON))

    def end_iteration(self) -> None:
        # Effects wait for the host's time; without this a loop that never reads a value would only queue them.
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        super().end_iteration()

    def read(self, operand: Operand) -> np.ndarray:
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        return self._array(place(operand)).copy()

    def _array(self, at: Place) -> np.ndarray:
        start, meta = at
        itemsize = meta.dtype.itemsize
        first = start + meta.offset * itemsize
        if meta.contiguous:
            return self._arena[first:first + meta.nbytes].view(meta.dtype.name).reshape(meta.shape)
        extent = 1 + sum((d - 1) * s for d, s in zip(meta.shape, meta.strides, strict=True))
        flat = self._arena[first:first + extent * itemsize].view(meta.dtype.name)
        return as_strided(flat, meta.shape, tuple(s * itemsize for s in meta.strides))
