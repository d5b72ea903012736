"""What every device offers: launch, copy, wait. A device is numerics x clock; this base is the clock part.

The verbs are the same for all devices, so that swapping is written once. Positions of streams are events (see
``clock``). Knows offsets in its arena and times; knows no storage's history and no policy.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, VirtualClock
from minidl.device.cost_model import algorithms as modelled_algorithms
from minidl.device.profiles import Profile
from minidl.errors import UserError
from minidl.meta import Algorithm, Cost, Meta

if TYPE_CHECKING:
    import numpy as np

    from minidl.memory.arena import Marks
    from minidl.memory.host_pool import Extents

ATTENTION = ("auto", "composed", "fused")
LEAST_TO_TELL = 1 << 20  # bytes copied in an iteration from which the link's speed can be told

Timed = Callable[[float], None] | None  # is told the device seconds of a piece of work, once they are known
Place = tuple[int, Meta]  # where a tensor's bytes start in the arena, and how its elements lie from there


class Operand(Protocol):
    """What a launch must know of a storage: its description, the block that its bytes are in, and whose these are."""

    @property
    def meta(self) -> Meta: ...

    @property
    def base(self) -> Any: ...

    @property
    def block(self) -> Any: ...


def place(operand: Operand) -> Place:
    """Where an operand lies now. Take it when the work is issued: blocks may move later, in stream order."""
    return operand.block.offset, operand.meta


class Device:
    """A device without numerics on the virtual clock: the simulator, and the base of the others."""

    has_values = False
    reserved_bytes = 0  # of every budget, what the device needs for itself
    dlpack_device = (1, 0)  # its kind and number for DLPack: host memory
    wall_clock = False  # seconds are measured: they differ from run to run, and are known only afterwards
    measured_iterations = 1  # how many iterations the durations in a trace are the median of

    def __init__(self, name: str, profile: Profile) -> None:
        self.name = name
        self.profile = profile
        self._attention = ATTENTION[0]
        self.clock = VirtualClock()
        self.positions = self.clock.positions  # the events of all that each stream was given so far
        self._launch_overhead_s = profile.launch_overhead_s
        self._copies: tuple[list[tuple[int, float]], ...] = ([], [])  # (bytes, seconds) out and in, in this iteration
        self._waited = [[0, 0, 0] for _ in range(3)]  # per stream: how far on each other it already waits

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Make the arena and the host pool real; nothing to do without numerics."""

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        """The ways to run a call; the first one's bits class is the one of the deterministic mode."""
        return modelled_algorithms(self.profile, op_name, inputs, outputs, attrs, cost)

    def usable_bytes(self, budget_bytes: int) -> int:
        """What of a budget tensors and workspaces may use: all that the device does not need for itself."""
        return budget_bytes

    def lay_out(self, op_name: str, inputs: tuple[Meta, ...], outputs: tuple[Meta, ...]) -> tuple[Meta, ...]:
        """How the outputs of a call shall lie, which the operation describes in C order."""
        return outputs

    def lay_out_leaf(self, leaf: Meta) -> Meta:
        """How a leaf shall lie, which is described in C order."""
        return leaf

    @property
    def attention(self) -> str:
        """Whether attention is ``composed`` of products and a softmax, is one operation (``fused``) wherever that can
        run, or is what the device does best (``auto``). It decides bits and bytes. Raises UserError for another name.
        """
        return self._attention

    @attention.setter
    def attention(self, value: str) -> None:
        if value not in ATTENTION:
            raise UserError(f"attention is {', '.join(ATTENTION[:-1])} or {ATTENTION[-1]}, not {value!r}")
        self._attention = value

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Whether attention of these operands is to be ``ops.scaled_dot_product_attention``, or composed.

        ``auto`` is composed here: the simulator's constants stand for frameworks that composed it, and on the CPU one
        program has the same bits as before.
        """
        return self.attention == "fused"

    # Work on the compute stream ------------------------------------------------------------------------------
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Run a kernel after all that the compute stream was given before; returns its position.

        timed: told its device seconds when they are known; for launches in program order, and never during a wait.
        """
        clock = self.clock
        clock.host += self._launch_overhead_s
        return clock.issue(COMPUTE, algorithm.seconds, timed=timed)

    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Copy bytes within the arena; the ranges may overlap (memmove). On the compute stream."""
        return self.clock.issue(COMPUTE, self.move_seconds(nbytes))

    # Copies --------------------------------------------------------------------------------------------------
    def copy_out(self, host: "Extents", offset: int, nbytes: int) -> int:
        """Copy device bytes to host memory on the copy-out stream; returns the position."""
        return self.clock.issue(COPY_OUT, self.out_seconds(nbytes), timed=self._noting(COPY_OUT, nbytes))

    def copy_in(self, offset: int, host: "Extents", nbytes: int) -> int:
        """Copy host bytes to the device on the copy-in stream; returns the position."""
        return self.clock.issue(COPY_IN, self.in_seconds(nbytes), timed=self._noting(COPY_IN, nbytes))

    def _noting(self, stream: int, nbytes: int) -> Timed:
        copies = self._copies[stream - COPY_OUT]
        return lambda seconds: copies.append((nbytes, seconds))

    def link_seconds_per_byte(self) -> tuple[float | None, float | None]:
        """What a byte has taken out and in in this iteration; None where too little was copied to tell."""
        def rate(copies: list[tuple[int, float]]) -> float | None:
            nbytes = sum(n for n, _ in copies)
            if nbytes < LEAST_TO_TELL:
                return None
            return max(sum(s for _, s in copies) - len(copies) * self.profile.link_latency_s, 0.0) / nbytes
        return rate(self._copies[0].copy()), rate(self._copies[1].copy())

    def poison(self, offset: int, nbytes: int, marks: "Marks") -> None:
        """Overwrite freed bytes once the streams have passed ``marks``; devices without numerics have none."""

    # Time ----------------------------------------------------------------------------------------------------
    def out_seconds(self, nbytes: int) -> float:
        return self.profile.link_latency_s + nbytes / self.profile.link_out_bandwidth

    def in_seconds(self, nbytes: int) -> float:
        return self.profile.link_latency_s + nbytes / self.profile.link_in_bandwidth

    def move_seconds(self, nbytes: int) -> float:
        return 2 * nbytes / (self.profile.memory_bandwidth * self.profile.efficiency["copy"])

    def wait(self, stream: int, on: int, position: int) -> None:
        """Work given to ``stream`` from now on starts after ``position`` of stream ``on``."""
        waited = self._waited[stream]
        if position > waited[on]:
            waited[on] = position
            self.clock.wait(stream, on, position)

    def wait_marks(self, stream: int, marks: "Marks") -> None:
        """Wait for every stream that used some bytes before, except the waiting one, which is in order anyway."""
        waited = self._waited[stream]
        computed, copied_out, copied_in = marks
        if copied_out > waited[COPY_OUT] and stream != COPY_OUT:
            self.wait(stream, COPY_OUT, copied_out)
        if copied_in > waited[COPY_IN] and stream != COPY_IN:
            self.wait(stream, COPY_IN, copied_in)
        if stream != COMPUTE and computed > waited[COMPUTE]:
            self.wait(stream, COMPUTE, computed)

    def synchronize(self, stream: int, position: int) -> None:
        """The host waits for a position of a stream."""
        self.clock.synchronize(stream, position)

    def settle(self) -> None:
        """Return when the times of all that was launched are known: on a modelled clock they are."""

    def measure(self, on: bool) -> None:
        """Say whether what comes, up to the iteration's end, will be measured: a device may then look more closely, at
        the price of speed. On a modelled clock there is nothing to look at."""

    def landed(self, copied_out: int) -> bool:
        """Whether a copy out will have finished, as far as is known, when the work launched so far has."""
        clock = self.clock
        return clock.finish_time(COPY_OUT, copied_out) <= max(clock.ready[COMPUTE], clock.host)

    def lateness(self, copied_in: int, computed: int) -> float:
        """Seconds by which a copy in, to be ready when the compute stream had reached ``computed``, came too late."""
        clock = self.clock
        return max(0.0, clock.finish_time(COPY_IN, copied_in) - clock.finish_time(COMPUTE, computed))

    def now(self) -> float:
        """Seconds since the start, on this device's clock, when all that was launched so far has finished."""
        return max(self.clock.host, self.clock.ready[COMPUTE])

    def stall_seconds(self) -> float:
        """How long the compute stream has stood still for copies, since the start."""
        return self.clock.stall

    def end_iteration(self) -> None:
        """Called at each iteration's end."""
        for copies in self._copies:
            copies.clear()
        self.clock.forget()

    # Values --------------------------------------------------------------------------------------------------
    def read(self, operand: Operand) -> "np.ndarray":
        """A host copy of a tensor's value: NaN (or zero, for integers) here, as there are no numerics."""
        import numpy as np

        self.synchronize(COMPUTE, self.positions[COMPUTE])
        meta = operand.meta
        return np.full(meta.shape, np.nan if meta.dtype.floating else 0, dtype=meta.dtype.name)

    def share(self, operand: Operand) -> Any:
        """A copy of a value in this device's memory, with the methods of DLPack: here in host memory."""
        from minidl.device import dlpack

        value = self.read(operand)
        return dlpack.of_host(value) if value.dtype.name == "bfloat16" else value

    def fetch(self, array: Any) -> "np.ndarray":
        """A host copy of another library's array that its library does not copy to the host itself.

        Raises UserError where this device cannot reach it.
        """
        raise UserError(f"{self.name} cannot read a {type(array).__name__} where it lies: copy it to the host first")

    def interface(self, operand: Operand) -> dict[str, Any]:
        """A value as ``__cuda_array_interface__`` describes it, at its place. Raises AttributeError: not here."""
        raise AttributeError(f"the memory of {self.name} is not CUDA's")


class DryDevice(Device):
    """Shapes alone: no launch takes time; algorithms are those of the device it stands for."""

    def __init__(self, device: Device) -> None:
        super().__init__(f"dry {device.name}", device.profile)
        self._device = device

    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        return self._device.algorithms(op_name, inputs, outputs, attrs, cost)

    def usable_bytes(self, budget_bytes: int) -> int:
        return self._device.usable_bytes(budget_bytes)

    def lay_out(self, op_name: str, inputs: tuple[Meta, ...], outputs: tuple[Meta, ...]) -> tuple[Meta, ...]:
        return self._device.lay_out(op_name, inputs, outputs)

    def lay_out_leaf(self, leaf: Meta) -> Meta:
        return self._device.lay_out_leaf(leaf)

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        return self._device.fuses_attention(q, k, mask, heads=heads, causal=causal, p=p)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        return 0
