"""The CPU device on worker threads and the wall clock, for training without a GPU."""

import weakref
from collections.abc import Callable

from minidl.device.cpu.device import CpuDevice
from minidl.device.cpu.link import with_contention
from minidl.device.cpu.numerics import Numerics
from minidl.device.cpu.workers import DEPTH, WorkerStreams
from minidl.device.profiles import Profile
from minidl.plan.costs import Costs


class ThreadedCpu(CpuDevice):
    """A CPU device on worker threads, which end at ``close``, with the device, or with the interpreter."""

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
