"""The CPU device on worker threads and the wall clock: what trains on a machine without a GPU."""

import weakref
from collections.abc import Callable

from minidl.device.cpu.device import CpuDevice
from minidl.device.cpu.link import with_contention
from minidl.device.cpu.numerics import Numerics
from minidl.device.cpu.workers import DEPTH, WorkerStreams
from minidl.device.profiles import Profile
from minidl.plan.costs import Costs


class ThreadedCpu(CpuDevice):
    """CPU numerics on worker threads; they end with ``close``, with the device, or with the interpreter."""

    wall_clock = True
    measured_iterations = 3  # what else the machine does adds time now here, now there

    def __init__(self, name: str, profile: Profile, *, poisoned: bool = False, synchronous: bool = False,
                 depth: int = DEPTH) -> None:
        self.synchronous = synchronous
        self.streams = WorkerStreams(depth=depth, synchronous=synchronous)
        super().__init__(name, profile, self.streams, poisoned=poisoned)
        weakref.finalize(self, self.streams.stop)  # the workers hold the streams, never the device

    @property
    def link_costs(self) -> Costs:
        """Copies run on the processors that kernels use, and take something from these."""
        return with_contention(super().link_costs)

    @property
    def delay(self) -> Callable[[int], None] | None:
        """Called with the stream before each piece of work, on its worker."""
        return self.streams.delay

    @delay.setter
    def delay(self, delay: Callable[[int], None] | None) -> None:
        self.streams.delay = delay

    def finish(self) -> None:
        """Wait for the kernels, unless the workers have stopped and the host knows why."""
        if not self.streams.told:
            super().finish()

    def close(self) -> None:
        """End the workers and give the memory back. What was launched last may not have happened."""
        self.streams.close()
        self.streams.told = True
        if self.numerics.spill is not None:
            self.numerics.spill.close()
        self.numerics = Numerics(0, 0)
