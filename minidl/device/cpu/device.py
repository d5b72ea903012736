"""The CPU device: NumPy arrays in an arena of fixed size, and a clock that calls kernels and copies.

``CpuDevice`` issues kernels and copies (``numerics``) to its clock in stream order. Its two subclasses choose the
clock:

  VirtualCpu            virtual time: every run interleaves alike; kernels take effect at their virtual start and
                        copies at their virtual end, so that a premature read always sees poison
  ThreadedCpu           worker threads and the wall clock, for training without a GPU

A kernel's error ends the device, unless the host waits for this very kernel (``confirm``): later work may need its
results.

A poisoned device fills freed bytes with NaN when the streams that used them have passed: a missing wait shows as NaN.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Extents, Marks, Timed, VirtualClock
from minidl.device.clock_interface import EffectClock
from minidl.device.contract import Device, Operand, place
from minidl.device.cpu.algorithms import cpu_algorithms
from minidl.device.cpu.link import with_contention
from minidl.device.cpu.numerics import Numerics
from minidl.device.cpu.workers import DEPTH, WorkerStreams
from minidl.device.profiles import Profile
from minidl.device.spill import DiskQueue, Spill, SpillFile
from minidl.meta import Algorithm, Cost, Meta, wide
from minidl.plan.costs import Costs


class CpuDevice(Device):
    """A device with real values in an arena of fixed size; ``poisoned`` fills the arena and freed bytes with NaN."""

    has_values = updates_on_host = True
    clock: EffectClock

    def __init__(self, name: str, profile: Profile, clock: EffectClock, *, poisoned: bool = False) -> None:
        super().__init__(name, profile, clock)
        self.poisoned = poisoned
        self._told = False  # the host has been told that a kernel's error has ended the device
        self.numerics = Numerics(0, 0)

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Allocate the arena and the host pool."""
        self.numerics = Numerics(budget_bytes, host_bytes)
        if self.poisoned:
            self.numerics.poison(0, budget_bytes)

    def spill_to(self, spill: Spill, host_bytes: int) -> None:
        """Open the spill file, which continues host memory from offset ``host_bytes`` on."""
        self.numerics.spill, self.spills_from = SpillFile(spill), host_bytes

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        """Return the variants of the CPU's kernel for this operation, with measured or modelled seconds."""
        return cpu_algorithms(self.profile, op_name, inputs, outputs, attrs, cost)

    def kernels_to_compile(self, ops: Iterable[str]) -> int:
        """Return how many kernels the functions of these operations use."""
        from minidl.kernels.cpu import KERNELS
        from minidl.kernels.cpu.compiled import kernels_used

        return kernels_used(KERNELS.get(op) for op in ops)

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Return True if ``attention`` is ``fused``, or ``auto`` for 16-bit floats: no scores are stored in float32."""
        return self.attention == "fused" or self.attention == "auto" and wide(q.dtype) is not q.dtype

    def fuses_recurrence(self, x: Meta) -> bool:
        """Return True: the CPU has kernels that compute all time steps of an LSTM or GRU in one call."""
        return True

    def fuses_depthwise(self, x: Meta) -> bool:
        """Return True for floats: the CPU's kernels for depthwise convolutions do not take integers."""
        return x.dtype.floating

    # Effects refer to the numerics, never to the device: a queue of them does not keep it alive.
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Queue a kernel on its operands' present addresses. Raises the error that has ended the device."""
        places = [place(operand) for operand in (*outputs, *inputs)]
        effect = partial(self.numerics.run, op_name, algorithm, places, attrs, workspace, len(outputs))
        self._check()
        return self.clock.issue(COMPUTE, algorithm.seconds, effect, timed=timed)

    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Queue a copy within the arena."""
        return self.clock.issue(COMPUTE, self.move_seconds(nbytes), partial(self.numerics.move, to, origin, nbytes))

    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        """Queue a copy to the host pool."""
        effect = partial(self.numerics.copy_out, host, offset)
        seconds = self.copy_seconds(COPY_OUT, host, nbytes)
        return self.clock.issue(COPY_OUT, seconds, effect, at_end=True, timed=self._noting_copy(COPY_OUT, host, nbytes))

    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        """Queue a copy from the host pool."""
        effect = partial(self.numerics.copy_in, offset, host)
        seconds = self.copy_seconds(COPY_IN, host, nbytes)
        return self.clock.issue(COPY_IN, seconds, effect, at_end=True, timed=self._noting_copy(COPY_IN, host, nbytes))

    def poison(self, offset: int, nbytes: int, marks: Marks) -> None:
        """Fill freed bytes with NaN, if the device is poisoned."""
        if self.poisoned:
            # Stream order, not host order: kernels that were issued before the free still read these bytes.
            self.clock.when_passed(marks, partial(self.numerics.poison, offset, nbytes))

    def confirm(self) -> None:
        """Wait for the kernel that was launched last. Raises its error, and forgets it."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        if self.numerics.skipped:  # the error is of an earlier kernel
            self._check()
        error, self.numerics.error = self.numerics.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # or its traceback would hold this frame, which holds it: tensors would live as long as both

    def _check(self) -> None:
        """Raise the error of a kernel, if one has failed and ``confirm`` did not raise it: the device has ended."""
        if self.numerics.error is not None:
            self._told = True
            raise self.numerics.error

    def finish(self) -> None:
        """Wait for the kernels, unless the host has already been told that one has ended the device."""
        if not self._told:
            self.synchronize(COMPUTE, self.positions[COMPUTE])
            self._check()

    def read(self, operand: Operand) -> np.ndarray:
        """Return a copy of a tensor's value, after all work of the compute stream and what it waits for."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        for stream in (COPY_OUT, COPY_IN):  # what the compute stream was told to wait for, after its last launch
            self.synchronize(stream, self._waited[COMPUTE][stream])
        self._check()
        return self.numerics.array(place(operand)).copy()


class VirtualCpu(CpuDevice):
    """A CPU device on the virtual clock."""

    clock: VirtualClock

    def __init__(self, name: str, profile: Profile, *, poisoned: bool = False) -> None:
        super().__init__(name, profile, VirtualClock(), poisoned=poisoned)
        self._launch_overhead_s = profile.launch_overhead_s

    def spill_to(self, spill: Spill, host_bytes: int) -> None:
        """Open the spill file; the disk takes modelled time."""
        super().spill_to(spill, host_bytes)
        self.disk = DiskQueue(self.profile, self.clock, host_bytes)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Queue a kernel, and add the profile's launch overhead to the host's time."""
        self.clock.host += self._launch_overhead_s
        return super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)

    def end_iteration(self) -> None:
        """Run all queued kernels: in a loop that never reads a value, they would otherwise pile up."""
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        super().end_iteration()


class ThreadedCpu(CpuDevice):
    """A CPU device on worker threads, which end at ``close``, with the device, or with the interpreter.
    synchronous: True if the host waits for each piece of work; depth: how many pieces it may be ahead of a stream."""

    wall_clock = True
    measured_iterations = 3  # other work on the machine adds time to some calls of each iteration

    def __init__(self, name: str, profile: Profile, *, poisoned: bool = False, synchronous: bool = False,
                 depth: int = DEPTH) -> None:
        self.streams = WorkerStreams(depth=depth, synchronous=synchronous)
        super().__init__(name, profile, self.streams, poisoned=poisoned)
        weakref.finalize(self, self.streams.stop)  # the workers hold the streams, never the device

    @property
    def link_costs(self) -> Costs:
        """The costs of copies, with the time they take from kernels on the same processors."""
        return with_contention(super().link_costs)

    @property
    def delay(self) -> Callable[[int], None] | None:
        """A function called with the stream before each piece of work, on its worker; None for no delay (tests)."""
        return self.streams.delay

    @delay.setter
    def delay(self, delay: Callable[[int], None] | None) -> None:
        self.streams.delay = delay

    def finish(self) -> None:
        """Wait for the kernels, unless the device has ended and the host has already been told why."""
        if not self.streams.told:
            super().finish()

    def close(self) -> None:
        """End the workers and free the memory. Work that was launched last may not run."""
        self.streams.close()
        self.streams.told = True
        if self.numerics.spill is not None:
            self.numerics.spill.close()
        self.numerics = Numerics(0, 0)
