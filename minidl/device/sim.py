"""The simulated device: shapes and a virtual clock. It computes no numbers; a launch only takes time.

The algorithms of its calls are a function, so it can simulate any device: with the cost model's algorithms, the plans
of cuDNN (``cuda.simulated``), or the fitted times of a measured machine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minidl.device.beside import BESIDE, EXCHANGES, Beside, SharedLink
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Extents, Timed, VirtualClock
from minidl.device.contract import Device, Operand
from minidl.device.cost_model import algorithms as modelled_algorithms
from minidl.device.profiles import Profile
from minidl.device.spill import DiskQueue, Spill
from minidl.meta import Algorithm, Cost, Meta

if TYPE_CHECKING:
    import numpy as np

Ways = Callable[[str, Sequence[Meta], Sequence[Meta], dict[str, Any], Cost], tuple[Algorithm, ...]]
"""A function like ``Choices.algorithms``: (operation, inputs, outputs, attributes, cost) -> algorithms."""


class SimDevice(Device):
    """A device without values, on the virtual clock.
    ``ways``: a function that returns a call's algorithms; by default the cost model's."""

    updates_on_host = True
    clock: VirtualClock

    def __init__(self, name: str, profile: Profile, ways: Ways | None = None) -> None:
        super().__init__(name, profile, VirtualClock())
        self.ways = partial(modelled_algorithms, profile) if ways is None else ways
        self._launch_overhead_s = profile.launch_overhead_s
        self.link = SharedLink(profile)
        self.exchanging = self.beside = Beside(self.clock, self.link)

    def simulated_twin(self) -> Device | None:
        """Return a new simulator with the same profile, algorithms and attention, at time 0."""
        twin = SimDevice(self.name, self.profile, self.ways)
        twin.attention = self.attention
        return twin

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Do nothing: no bytes exist."""

    def spill_to(self, spill: Spill, host_bytes: int) -> None:
        """Model the disk's time; no file is made."""
        self.disk, self.spills_from = DiskQueue(self.profile, self.clock, host_bytes), host_bytes

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms that ``ways`` gives."""
        return self.ways(op_name, inputs, outputs, attrs, cost)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Occupy the compute stream for the algorithm's seconds, and the host for the launch overhead.
        Exchanges of ``beside.BESIDE`` take no time of the compute stream; it may wait for one before it goes on."""
        clock = self.clock
        clock.host += self._launch_overhead_s
        in_use = self.beside.in_use
        if in_use.latest > in_use.waited[COMPUTE] and op_name not in BESIDE:
            self.beside.hold_for((*outputs, *inputs))
        if op_name in BESIDE:
            self.beside.start(algorithm.seconds, (*outputs, *inputs))
            return clock.issue(COMPUTE, 0.0, timed=timed)
        seconds = self.beside.at_once(algorithm.seconds) if op_name in EXCHANGES else algorithm.seconds
        return clock.issue(COMPUTE, seconds, timed=timed)

    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Occupy the compute stream for the modelled seconds of a copy within the arena."""
        if self.beside.in_use.latest:
            self.beside.hold(COMPUTE, to, nbytes)
            self.beside.hold(COMPUTE, origin, nbytes)
        return self.clock.issue(COMPUTE, self.move_seconds(nbytes))

    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        """Occupy the copy-out stream for the modelled seconds of a copy to the host, and on to the disk if spilled."""
        return self._copy(COPY_OUT, host, offset, nbytes)

    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        """Occupy the copy-in stream for the modelled seconds of a copy from the host, and from the disk if spilled."""
        return self._copy(COPY_IN, host, offset, nbytes)

    def _copy(self, stream: int, host: Extents, offset: int, nbytes: int) -> int:
        if self.beside.in_use.latest:
            self.beside.hold(stream, offset, nbytes)
        seconds = self.copy_seconds(stream, host, nbytes)
        position = self.clock.issue(stream, seconds, timed=self._noting_copy(stream, host, nbytes))
        if self.profile.shared_bandwidth:
            self.link.copied(stream, seconds, self.clock.ready[stream])
        return position

    def read(self, operand: Operand) -> "np.ndarray":
        """Return an array of NaN (0 for integers) in the tensor's shape, after the compute stream has finished."""
        import numpy as np

        if self.beside.in_use.latest:
            self.beside.hold_for((operand,))
        self.synchronize(COMPUTE, self.positions[COMPUTE])
        meta = operand.meta
        return np.full(meta.shape, np.nan if meta.dtype.floating else 0, dtype=meta.dtype.name)

    def end_iteration(self) -> None:
        """Delete the records of exchanges between ranks, and of other work, that have ended."""
        self.beside.forget_ended()
        super().end_iteration()
