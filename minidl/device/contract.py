"""The contract of devices: decisions about calls, an order between streams, work on them, and values.

A device is numerics x clock. The verbs are the same for all devices, so that swapping is written once:

    Choices      decisions about a call that follow from its shapes: algorithms, layout, attention, usable memory
    Timekeeper   the part that follows from the clock: waits between streams, times of events, durations of copies
    Device       both, and the part in which devices differ: launch, move, copies, and the values in memory

    SimDevice (``sim``)          no numbers, on the virtual clock
    CpuDevice (``cpu.device``)   NumPy arrays, on the virtual clock or on worker threads
    CudaDevice (``cuda.device``) a GPU, on its own streams

A device knows offsets in its arena and times; it knows no storage's history and no policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from minidl.device.clock import COPY_OUT, Clock, Extents, Marks, Timed
from minidl.device.profiles import Profile
from minidl.device.spill import DiskQueue, Spill, disk_costs
from minidl.device.timekeeper import Timekeeper
from minidl.errors import UserError
from minidl.meta import Algorithm, Cost, Meta
from minidl.plan.costs import Costs

if TYPE_CHECKING:
    import numpy as np

ATTENTION = ("auto", "composed", "fused")

@dataclass(frozen=True, eq=False)
class Failure:
    """An error of a kernel, which ends its call and those that need its results, and nothing else.

    ``attrs`` are the call's own: no other call has this very object.
    """

    error: Exception
    op_name: str
    attrs: dict[str, Any]


Place = tuple[int, Meta]  # where a tensor's bytes start in the arena, and how its elements lie from there


class Operand(Protocol):
    """The facts about a storage that a launch needs: its description, its block, and its base."""

    @property
    def meta(self) -> Meta:
        """Shape, dtype and strides."""

    @property
    def base(self) -> Any:
        """The storage whose bytes these are: another one for a view, else itself."""

    @property
    def block(self) -> Any:
        """The block of the arena that these bytes are in."""


def place(operand: Operand) -> Place:
    """Where an operand lies now. Take it when the work is issued: blocks may move later, in stream order."""
    return operand.block.offset, operand.meta


class Choices(ABC):
    """A device's decisions about a call before it runs, from shapes alone. A dry run asks the device for all of them.

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
        """The ways to run a call; the first one's bits class is the one of the deterministic mode."""

    def usable_bytes(self, budget_bytes: int) -> int:
        """The part of a budget that tensors and workspaces may use: all but the device's own part."""
        return budget_bytes

    def lay_out(self, op_name: str, inputs: tuple[Meta, ...], outputs: tuple[Meta, ...]) -> tuple[Meta, ...]:
        """How the outputs of a call shall lie, which the operation describes in C order."""
        return outputs

    def lay_out_leaf(self, leaf: Meta) -> Meta:
        """How a leaf shall lie, which is described in C order."""
        return leaf

    @property
    def attention(self) -> str:
        """How attention runs: ``composed`` of products and a softmax, as one operation wherever that can run
        (``fused``), or as the device does it best (``auto``). It decides bits and bytes. Raises UserError for another
        name.
        """
        return self._attention

    @attention.setter
    def attention(self, value: str) -> None:
        if value not in ATTENTION:
            raise UserError(f"attention is {', '.join(ATTENTION[:-1])} or {ATTENTION[-1]}, not {value!r}")
        self._attention = value

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """True if attention of these operands is to be ``ops.scaled_dot_product_attention``, False if composed.

        ``auto`` is composed here: the simulator's constants stand for frameworks that composed it, and on the CPU one
        program has the same bits as before.
        """
        return self.attention == "fused"


class Device(Choices, Timekeeper):
    """A place where tensors live and operations run.

    has_values     the bytes of tensors exist, so that they can be read
    dlpack_device  its kind and number for DLPack; (1, 0) is host memory
    """

    has_values = False
    dlpack_device = (1, 0)

    def __init__(self, name: str, profile: Profile, clock: Clock) -> None:
        Choices.__init__(self, profile)
        Timekeeper.__init__(self, profile, clock)
        self.name = name
        self.disk: DiskQueue | None = None  # how long copies to a file take, where time is modelled
        self.spills_from: int | None = None  # where in host memory the file begins, if there is one
        self.failures: list[Failure] = []  # of kernels, until ``forgive``; always the same list

    @property
    def arena_in_host_memory(self) -> bool:
        """True if the arena takes memory of the host, beside the host tier."""
        return self.has_values and self.dlpack_device == (1, 0)

    def dry_twin(self) -> "Device":
        """A device on shapes alone that decides of calls as this one does: no launch takes time there, and nothing is
        launched here. For what a step needs, and for whether it fits."""
        from minidl.device.sim import DryDevice  # which is a Device itself

        return DryDevice(self)

    def simulated_twin(self) -> "Device | None":
        """A simulator of the same profile, algorithms and attention that has launched nothing; None for a device that
        is not simulated itself. For how long a step would take."""
        return None

    @abstractmethod
    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Make the arena and the host pool real. Sizes in bytes."""

    def spill_to(self, spill: Spill, host_bytes: int) -> None:
        """Continue the host pool's ``host_bytes`` in a file: pieces of host memory from there on are in it. Raises
        UserError where there is no room for it, or no way to it."""
        raise UserError(f"{self.name} has no way to a disk yet: leave spill away")

    @property
    def link_costs(self) -> Costs:
        """The costs of copies, and of continuing to a file, by the profile."""
        costs = super().link_costs
        return costs if self.spills_from is None else replace(costs, disk=disk_costs(self.profile, self.spills_from))

    def _noting_copy(self, stream: int, host: Extents, nbytes: int) -> Timed:
        """Notes what a copy has taken on the link; nothing of one that goes on to a file, or comes from there."""
        spilled = self.spills_from is not None and any(at >= self.spills_from for at, _ in host)
        return None if spilled else self._noting(stream, nbytes)

    def copy_seconds(self, stream: int, host: Extents, nbytes: int) -> float:
        """Modelled seconds of a copy of ``nbytes`` to or from these pieces, if it is issued to its stream now."""
        seconds = self.out_seconds(nbytes) if stream == COPY_OUT else self.in_seconds(nbytes)
        return seconds if self.disk is None else self.disk.seconds(stream, host, seconds)

    # Work on the compute stream ------------------------------------------------------------------------------
    @abstractmethod
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Run a kernel after all that the compute stream was given before; returns its position.

        algorithm: one that ``algorithms`` returned for operands of these descriptions.
        workspace: where its workspace starts in the arena.
        timed: told its device seconds when they are known; for launches in program order, and never during a wait.
        """

    @abstractmethod
    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Copy bytes within the arena on the compute stream; the ranges may overlap. Returns the position."""

    # Copies --------------------------------------------------------------------------------------------------
    @abstractmethod
    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        """Copy device bytes to host memory on the copy-out stream; returns the position."""

    @abstractmethod
    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        """Copy host bytes to the device on the copy-in stream; returns the position."""

    def poison(self, offset: int, nbytes: int, marks: Marks) -> None:
        """Overwrite freed bytes once the streams have passed ``marks``, on a device that can be asked to do so."""

    # Failures ------------------------------------------------------------------------------------------------
    def lost(self, block_offset: int | None, host: Extents | None, nbytes: int) -> bool:
        """True if a tensor has no value since a kernel failed: its bytes lie at an offset, else on the host.

        To be asked when all streams have finished. Here no kernel fails.
        """
        return False

    def finish(self) -> None:
        """Return when all kernels are over that may still fail. Here none does."""

    def forgive(self) -> None:
        """Clear failures that have been handled: lost values will not be requested any more."""
        self.failures.clear()

    # Values --------------------------------------------------------------------------------------------------
    @abstractmethod
    def read(self, operand: Operand) -> "np.ndarray":
        """A host copy of a tensor's value. Raises the first failure's error."""

    def share(self, operand: Operand) -> Any:
        """A copy of a value in this device's memory, with the methods of DLPack: here in host memory."""
        from minidl.device import dlpack  # NumPy, which a simulation does without

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
