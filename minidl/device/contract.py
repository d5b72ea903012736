"""The interface of devices: choices about calls, order between streams, work on the streams, and values.

A device combines numerics and a clock. All devices have the same methods, so swapping is written once:

  Choices      choices about a call that follow from its shapes: algorithms, memory format, attention, usable memory
  Timekeeper   waits between streams, times of events, durations of copies: all that follows from the clock
  Device       both, and the part in which devices differ: launch, move, copies, and the values in memory

  SimDevice (``sim``)          no numbers, on the virtual clock
  CpuDevice (``cpu.device``)   NumPy arrays, on the virtual clock or on worker threads
  CudaDevice (``cuda.device``) a GPU, on its own streams

A device knows offsets in its arena and times; it knows no storage's history and no policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from minidl.device.clock import Extents, Marks, Timed
from minidl.device.clock_interface import Clock
from minidl.device.in_use import Exchanging
from minidl.device.profiles import Profile
from minidl.device.spill import Spill
from minidl.device.timekeeper import Timekeeper
from minidl.errors import UserError
from minidl.meta import Algorithm, Cost, DType, Meta, wide

if TYPE_CHECKING:
    import numpy as np

    from minidl.ranks import Ranks

ATTENTION = ("auto", "composed", "fused")

Place = tuple[int, Meta]  # the offset of a tensor's bytes in the arena, and the layout of its elements from there


class Operand(Protocol):
    """The facts about a storage that a launch needs: its description, its block, and its base."""

    @property
    def meta(self) -> Meta:
        """Shape, dtype and strides."""

    @property
    def base(self) -> Any:
        """The storage that owns the bytes: another storage for a view, else this one."""

    @property
    def block(self) -> Any:
        """The block of the arena that holds the bytes."""


def place(operand: Operand) -> Place:
    """Return an operand's place in the arena now. Ask when the work is issued: blocks may move later, in stream order.
    """
    return operand.block.offset, operand.meta


def bytes_of(operand: Operand) -> tuple[int, int]:
    """Return the bytes of the arena that an operand lies in, as (offset, nbytes)."""
    block = operand.block
    return block.offset, block.size


class Choices(ABC):
    """A device's choices about a call before it runs, from shapes alone. A dry run asks the device for all of them.

    profile         capacity, speeds and link, as the cost model sees them
    reserved_bytes  the part of every budget that the device itself uses
    """

    reserved_bytes = 0

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._attention = ATTENTION[0]

    @abstractmethod
    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms for a call. The first one's bits class is the one of the deterministic mode."""

    def untimed_algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                           cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms for a call without timing any; algorithms never timed before have modelled seconds."""
        return self.algorithms(op_name, inputs, outputs, attrs, cost)

    def usable_bytes(self, budget_bytes: int) -> int:
        """Return the part of a budget that tensors and workspaces may use: the budget less the device's own part."""
        return budget_bytes

    def lay_out(self, op_name: str, inputs: tuple[Meta, ...], outputs: tuple[Meta, ...]) -> tuple[Meta, ...]:
        """Return a call's contiguous output metas in the memory format that the device wants."""
        return outputs

    def lay_out_leaf(self, leaf: Meta) -> Meta:
        """Return a leaf's meta in the memory format that the device wants; ``leaf`` describes it contiguous."""
        return leaf

    @property
    def attention(self) -> str:
        """How attention runs; the choice decides bits and bytes. Raises UserError when set to another name.

        ``composed``: products and a softmax. ``fused``: one operation where possible. ``auto``: the device's choice.
        """
        return self._attention

    @attention.setter
    def attention(self, value: str) -> None:
        if value not in ATTENTION:
            raise UserError(f"attention is {', '.join(ATTENTION[:-1])} or {ATTENTION[-1]}, not {value!r}")
        self._attention = value

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Return True if attention of these operands runs as one operation, False if it is composed of several.

        q: [N, L, width], k: [N, S, width], of all heads together; the mask is added to the scores. causal: no query
        sees a later key. p: the probability of dropout. This default composes unless ``self.attention`` is ``fused``:
        the simulator's constants are calibrated on frameworks that composed attention."""
        return self.attention == "fused"

    def fuses_recurrence(self, x: Meta) -> bool:
        """Return True if an LSTM or GRU over x runs as one operation; a GPU and its simulator compose it."""
        return False

    def fuses_depthwise(self, x: Meta) -> bool:
        """Return True if a depthwise convolution of x runs as one operation; a GPU and its simulator compose it."""
        return False


class Device(Choices, Timekeeper):
    """A device that holds tensors and runs operations.

    has_values     True if the bytes of tensors exist, so that they can be read
    updates_on_host  True if an optimizer's step can run on the host (``optim.on_host``)
    dlpack_device  its kind and number for DLPack; (1, 0) is host memory
    exchanging     its exchanges with other ranks beside the compute stream; None if they run in their place
    """

    exchanging: Exchanging | None = None
    has_values = False
    updates_on_host = False
    dlpack_device = (1, 0)

    def __init__(self, name: str, profile: Profile, clock: Clock) -> None:
        Choices.__init__(self, profile)
        Timekeeper.__init__(self, profile, clock)
        self.name = name

    def composes_attention_in(self, dtype: DType) -> DType:
        """Return the dtype in which attention on operands of ``dtype`` is composed, from scores to result.
        It is float32 for 16-bit floats, since a score of 50 in bfloat16 is 0.1 off. A simulator composes in ``dtype``,
        as the frameworks did on which it is calibrated."""
        return wide(dtype) if self.has_values else dtype

    @property
    def arena_in_host_memory(self) -> bool:
        """True if the arena takes host memory, in addition to the host pool."""
        return self.has_values and self.dlpack_device == (1, 0)

    def dry_twin(self, *, timed: bool = True) -> "Device":
        """Return a device without values or launch times that makes the same choices about calls, to count memory.
        timed: False for a trial that must not take long: no algorithm is timed for it."""
        from minidl.device.dry import DryDevice  # which is a Device itself

        return DryDevice(self, timed=timed)

    def simulated_twin(self) -> "Device | None":
        """Return a fresh simulator of the same device, to predict a step's time; None if this device is no simulator.
        """
        return None

    @abstractmethod
    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Allocate the arena (``budget_bytes``) and the host pool (``host_bytes``)."""

    def join(self, ranks: "Ranks") -> None:
        """Prepare exchanges with the devices of the other ranks; all ranks call this. By default it does nothing.
        Raises UserError, on all ranks, if the devices cannot be connected."""

    def spill_to(self, spill: Spill, host_bytes: int) -> None:
        """Continue the host pool in a file from host offset ``host_bytes`` on.
        Raises UserError if the device cannot do so, or if the file cannot be made, as on a full disk."""
        raise UserError(f"{self.name} cannot spill to a disk: leave out spill")

    # Work on the compute stream ------------------------------------------------------------------------------
    @abstractmethod
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Run a kernel after all earlier work of the compute stream; return its position.

        algorithm: one that ``algorithms`` returned for operands of these descriptions.
        workspace: the offset of its workspace in the arena.
        timed: called with its device seconds when they are known, in the order of launches; on the CPU by a worker.
        """

    @abstractmethod
    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Copy bytes within the arena on the compute stream; the ranges may overlap. Return the position."""

    # Copies --------------------------------------------------------------------------------------------------
    @abstractmethod
    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        """Copy device bytes to host memory on the copy-out stream; return the position."""

    @abstractmethod
    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        """Copy host bytes to the device on the copy-in stream; return the position."""

    def poison(self, offset: int, nbytes: int, marks: Marks) -> None:
        """Overwrite freed bytes once the streams have passed ``marks``, on a device that was made with ``poisoned``."""

    # Errors --------------------------------------------------------------------------------------------------
    def confirm(self) -> None:
        """Wait for the kernel that was launched last. Raises its error; then it has written no output.
        The device goes on after that. An error of a kernel that is not confirmed ends the device. By default no kernel
        fails."""

    def finish(self) -> None:
        """Block the host until all kernels have ended. Raises the error that has ended the device, once.
        By default none can."""

    def kernels_to_compile(self, ops: Iterable[str]) -> int:
        """Return about how many kernels are compiled when these operations run for the first time on a machine."""
        return 0

    # Values --------------------------------------------------------------------------------------------------
    @abstractmethod
    def read(self, operand: Operand) -> "np.ndarray":
        """Return a host copy of a tensor's value. Raises the error that has ended the device."""

    def share(self, operand: Operand) -> Any:
        """Return a copy of a value that supports DLPack: on the host, or in a GPU's memory by a device that has one."""
        from minidl.device import dlpack  # NumPy, which a simulation does without

        value = self.read(operand)
        return dlpack.of_host(value) if value.dtype.name == "bfloat16" else value

    def fetch(self, array: Any) -> "np.ndarray":
        """Return a host copy of another library's array, if that library does not copy to the host itself.

        Raises UserError if this device cannot reach the array.
        """
        raise UserError(f"{self.name} cannot read the memory of a {type(array).__name__}: copy it to the host first")

    def interface(self, operand: Operand) -> dict[str, Any]:
        """Return a value's ``__cuda_array_interface__``, without a copy. Raises AttributeError without CUDA."""
        raise AttributeError(f"the memory of {self.name} is not CUDA's")
