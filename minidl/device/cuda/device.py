"""The CUDA device: one arena, one pool of page-locked host memory, its streams, and all methods of ``Device``.

  arena     one allocation of device memory: tensors and workspaces, and behind them the reserve
  reserve   the workspace of cuBLAS, and the buffer through which blocks are slid. Only the compute stream uses it, so
            both may share the bytes. Its size never changes, because cuBLAS chooses its algorithm by it
  pages     page-locked host memory of the host pool, locked when copies first reach it

Methods issue work to a stream and return; those that give a value (``read``, ``share``, ``interface``), ``synchronize``
and ``settle`` wait. Knows the seam and programs; no vendor's library, no storage's history and no policy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.device import dlpack
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, Extents, Timed
from minidl.device.contract import Device, Operand, bytes_of
from minidl.device.cost_model import call_seconds
from minidl.device.cuda import attention, convolution, memory_format, products
from minidl.device.cuda.group import OPERATIONS, Group
from minidl.device.cuda.page_locked import PageLocked
from minidl.device.cuda.programs import KernelStream, Program, Programs, do_nothing
from minidl.device.cuda.seam import Vendor
from minidl.device.cuda.staging import Staging
from minidl.device.cuda.streams import DEPTH, EventStreams
from minidl.device.cuda.timed_plans import PlanTable
from minidl.device.profiles import Profile
from minidl.errors import DeviceError, UserError
from minidl.kernels.cuda.launch import Kernel
from minidl.meta import Algorithm, Cost, Meta, aligned, row_major
from minidl.outside.units import format_bytes
from minidl.ranks import Ranks

RESERVE_BYTES = 32 * 2**20  # what NVIDIA recommends for cuBLAS on Hopper
PIECES = 16  # a block is slid directly in at most this many copies; if it needs more, through the reserve


class CudaDevice(Device):
    """An NVIDIA GPU, used through ``seam.Vendor``.

    kernels    the table of CUDA kernels, by operation
    tf32       True if tensor cores may round the factors of fp32 products and convolutions to 10 bits
    cache      the folder for plans of convolutions and attention; None keeps them in this process only
    cupti      True to time the kernels themselves in a measured iteration, instead of the gaps between events
    """

    has_values = True
    wall_clock = True
    measured_iterations = 3
    dlpack_device = (2, 0)

    def __init__(self, name: str, profile: Profile, vendor: Vendor, kernels: Mapping[str, Kernel], *,
                 tf32: bool = False, cache: Path | None = None, cupti: bool = False,
                 reserve_bytes: int = RESERVE_BYTES, depth: int = DEPTH) -> None:
        self.streams = EventStreams(vendor, depth=depth)
        super().__init__(name, profile, self.streams)
        self.cupti = cupti
        if cupti:
            self.measured_iterations = 1  # exact times need no median
        self.vendor = vendor
        self.staging = Staging(self.streams)
        self.plans = PlanTable(vendor, cache)
        self.attention_plans = attention.AttentionPlans(vendor, cache)
        self.programs = Programs(KernelStream(vendor, self.streams.handles[COMPUTE], self.staging), kernels, tf32=tf32)
        self.exchanging = self.group = Group(self.streams, self.programs)
        self.reserved_bytes = aligned(reserve_bytes)
        self._arena = self._reserve = 0
        self._pages = PageLocked(vendor, 0)
        # By id(): the executor launches the same objects that ``algorithms`` made. Each is kept with its program, so
        # that its id stays valid.
        self._programs: dict[int, tuple[Algorithm, Program]] = {}

    # Memory --------------------------------------------------------------------------------------------------
    def usable_bytes(self, budget_bytes: int) -> int:
        """Return the part of a budget for tensors and workspaces. Raises UserError if nothing is left."""
        if budget_bytes <= self.reserved_bytes:
            raise UserError(f"a memory budget of {format_bytes(budget_bytes)} on {self.name}: more than "
                            f"{format_bytes(self.reserved_bytes)} is needed: products and moves use that much")
        return budget_bytes - self.reserved_bytes

    def attach(self, budget_bytes: int, host_bytes: int) -> None:
        """Allocate the arena and its reserve. Raises DeviceError if there is not enough memory."""
        self._arena = self.vendor.allocate(budget_bytes + self.reserved_bytes)
        self._reserve = self._arena + budget_bytes
        self._pages = PageLocked(self.vendor, host_bytes)
        self.vendor.set_workspace(self._reserve, self.reserved_bytes, self.streams.handles[COMPUTE])

    def lay_out(self, op_name: str, inputs: tuple[Meta, ...], outputs: tuple[Meta, ...]) -> tuple[Meta, ...]:
        """Return the outputs in their memory format: channels-last for images and convolution weights."""
        return memory_format.outputs(op_name, inputs, outputs)

    def lay_out_leaf(self, leaf: Meta) -> Meta:
        """Return the leaf as channels-last if it has four dimensions."""
        return memory_format.channels_last(leaf)

    def fuses_attention(self, q: Meta, k: Meta, mask: Meta | None, *, heads: int, causal: bool, p: float) -> bool:
        """Return True if cuDNN has plans for this attention and its gradient, unless ``attention`` is ``composed``."""
        return self.attention != "composed" and self.attention_plans.fits(q, k, mask, heads=heads, causal=causal, p=p)

    def join(self, ranks: Ranks) -> None:
        """Connect this GPU with those of the other ranks. Raises UserError, on all ranks, if they cannot be connected.
        """
        self.group.join(ranks)

    # Alternatives --------------------------------------------------------------------------------------------
    def algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                   cost: Cost) -> tuple[Algorithm, ...]:
        """Return cuDNN's plans for a convolution, else one algorithm; keep the program of each for ``launch``."""
        return self._algorithms(op_name, inputs, outputs, attrs, cost, timed=True)

    def untimed_algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                           cost: Cost) -> tuple[Algorithm, ...]:
        """Return the algorithms for a call without timing any; plans never timed before have modelled seconds."""
        return self._algorithms(op_name, inputs, outputs, attrs, cost, timed=False)

    def _algorithms(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: dict[str, Any],
                    cost: Cost, *, timed: bool) -> tuple[Algorithm, ...]:
        seconds = call_seconds(self.profile, outputs, cost)
        trivial = outputs and not all(m.size for m in (*inputs, *outputs)) and self.programs.of_empty(op_name, outputs)
        if trivial:
            algorithm = Algorithm("", seconds)
            self._keep(algorithm, trivial)
            return (algorithm,)
        if op_name in convolution.KINDS:
            steps = convolution.steps(op_name, inputs, outputs[0], attrs, tf32=self.programs.tf32)
            choices = convolution.algorithms(steps, self.plans.of(steps.convolution, timed=timed), seconds)
            for choice in choices:
                self._keep(choice, self.programs.convolution(steps, choice.name, inputs, outputs[0]))
            return choices
        if op_name in attention.OPERATIONS:
            needed = attention.steps(op_name, inputs, outputs, attrs)
            plan = self.attention_plans.of(needed.attention)
            choice = Algorithm(plan.name, seconds, needed.scratch + aligned(plan.workspace), plan.name)
            self._keep(choice, self.programs.attention(needed, plan.name, (*outputs, *inputs)))
            return (choice,)
        program, workspace = self._program(op_name, inputs, outputs, attrs)
        algorithm = Algorithm("", seconds, workspace)
        self._keep(algorithm, program)
        return (algorithm,)

    def _program(self, op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta],
                 attrs: dict[str, Any]) -> tuple[Program, int]:
        """Return the program and the workspace of an operation that has a single algorithm."""
        if op_name in products.OPERATIONS:
            return self.programs.product(op_name, inputs, outputs[0], attrs)
        if op_name in OPERATIONS:
            return self.group.program(op_name, inputs, outputs, attrs)
        if op_name not in self.programs.kernels:  # reading a value is no launch
            return do_nothing, 0
        metas = (*outputs, *inputs)
        return (self.programs.kernel(op_name, metas, attrs), self.programs.kernel_workspace(op_name, metas, attrs))

    def _keep(self, algorithm: Algorithm, program: Program) -> None:
        self._programs[id(algorithm)] = algorithm, program

    # The compute stream --------------------------------------------------------------------------------------
    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        """Issue the work of a call to the compute stream; return its position. Errors name the operation."""
        program = self._programs[id(algorithm)][1]
        streams, arena, in_use = self.streams, self._arena, self.group.in_use
        if in_use.latest > in_use.waited[COMPUTE] and op_name not in OPERATIONS:
            self._hold(COMPUTE, *map(bytes_of, (*outputs, *inputs)), (workspace, algorithm.workspace))
        if streams.gap is not None or streams.sees_idle:
            streams.begin()
        blocks = [arena + operand.block.offset for operand in (*outputs, *inputs)]
        try:
            program(blocks, attrs, arena + workspace)
        except DeviceError as error:
            raise DeviceError(f"{op_name}: {error}") from error
        except Exception as error:
            error.add_note(f"in the kernel of {op_name}")
            raise
        return streams.mark(COMPUTE, timed)

    def _hold(self, stream: int, *used: tuple[int, int]) -> None:
        """Make a stream wait for exchanges that use some of these bytes of the arena, each (offset, nbytes)."""
        for offset, nbytes in used:
            self.group.hold(stream, self._arena + offset, self._arena + offset + nbytes)

    def move(self, to: int, origin: int, nbytes: int) -> int:
        """Copy bytes within the arena on the compute stream; return the position. Overlapping ranges go in pieces.

        The vendor's copies must not overlap. So a piece is at most as long as the distance, or, if that means very many
        pieces, goes through the reserve. The order of the pieces ensures that none overwrites a piece that is still to
        go.
        """
        streams, vendor = self.streams, self.vendor
        self._hold(COMPUTE, (to, nbytes), (origin, nbytes))
        streams.begin()
        stream, distance = streams.handles[COMPUTE], abs(to - origin)
        direct = distance * PIECES >= nbytes
        piece = min(nbytes, distance if direct else self.reserved_bytes)
        starts = range(0, nbytes, piece) if distance else range(0)
        for start in starts if to < origin else reversed(starts):
            size = min(piece, nbytes - start)
            source, target = self._arena + origin + start, self._arena + to + start
            if not direct:
                vendor.copy(self._reserve, source, size, stream)
                source = self._reserve
            vendor.copy(target, source, size, stream)
        return streams.mark(COMPUTE)

    # The copy streams ----------------------------------------------------------------------------------------
    def copy_out(self, host: Extents, offset: int, nbytes: int) -> int:
        """Issue one copy for each piece of host memory, locking memory at its first use. Raises HostShort."""
        return self._copy(COPY_OUT, host, offset, nbytes)

    def copy_in(self, offset: int, host: Extents, nbytes: int) -> int:
        """Issue one copy for each piece of host memory."""
        return self._copy(COPY_IN, host, offset, nbytes)

    def _copy(self, stream: int, host: Extents, offset: int, nbytes: int) -> int:
        self._hold(stream, (offset, nbytes))
        self.streams.begin_copy(stream)
        handle, device = self.streams.handles[stream], self._arena + offset
        for address, size in self._pages.pieces(host):
            self.vendor.copy(*((address, device) if stream == COPY_OUT else (device, address)), size, handle)
            device += size
        return self.streams.mark(stream)

    def measure(self, on: bool) -> None:
        """Start or stop leaving out of calls' times the time in which the GPU had no work.
        A device opened with ``cupti`` also records each kernel's time. Raises DeviceError if CUPTI cannot record."""
        self.streams.sees_idle = on
        self.streams.measure_exactly(on and self.cupti)

    # Values --------------------------------------------------------------------------------------------------
    def read(self, operand: Operand) -> np.ndarray:
        """Return a host copy of a value: one copy after the compute stream's earlier work, and one wait for it."""
        m = operand.meta
        if not m.size:
            return np.empty(m.shape, m.dtype.name)
        extent = 1 + sum((d - 1) * s for d, s in zip(m.shape, m.strides, strict=True))
        flat, streams = np.empty(extent, m.dtype.name), self.streams
        self._hold(COMPUTE, bytes_of(operand))
        streams.begin()
        self.vendor.copy(flat.ctypes.data, self.address(operand), flat.nbytes, streams.handles[COMPUTE])
        streams.mark(COMPUTE)
        streams.settle()  # report the times of earlier work before the read's own
        return as_strided(flat, m.shape, tuple(s * flat.itemsize for s in m.strides)).copy()

    def share(self, operand: Operand) -> Any:
        """Return a copy of a value in device memory outside the arena, as an object that supports DLPack."""
        m = operand.meta
        self._hold(COMPUTE, bytes_of(operand))
        self.streams.settle()
        if m.dtype.name != "bfloat16":
            return self.vendor.array(self.address(operand), m.shape, m.strides, m.dtype.name)
        bits = self.vendor.array(self.address(operand), m.shape, m.strides, "uint16")
        described = getattr(bits, "__cuda_array_interface__", None) or bits.__array_interface__
        return dlpack.Bfloat16(bits, described["data"][0], m.shape, row_major(m.shape), self.dlpack_device)

    def fetch(self, array: Any) -> np.ndarray:
        """Return a host copy of an array on this GPU: by ``__cuda_array_interface__``, or bfloat16 by DLPack.

        The copy waits for the work of the array's library on the default stream.
        """
        if hasattr(array, "__dlpack__"):
            with dlpack.borrowed(array) as found:
                if found is not None and found.device == self.dlpack_device:
                    bits = self.vendor.array(found.address, found.shape, found.strides, "uint16")
                    return np.from_dlpack(bits, device="cpu").view("bfloat16")
        described = getattr(array, "__cuda_array_interface__", None)
        if described is None:
            return super().fetch(array)
        kind, shape, strides = np.dtype(described["typestr"]), tuple(described["shape"]), described.get("strides")
        lying = row_major(shape) if strides is None else tuple(s // kind.itemsize for s in strides)
        return np.from_dlpack(self.vendor.array(described["data"][0], shape, lying, kind.name), device="cpu")

    def interface(self, operand: Operand) -> dict[str, Any]:
        """Return a value's ``__cuda_array_interface__``, valid until the next call. AttributeError for bfloat16."""
        m = operand.meta
        if m.dtype.name == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no name for bfloat16: use DLPack")
        kind = np.dtype(m.dtype.name)
        self._hold(COMPUTE, bytes_of(operand))
        self.streams.settle()
        return {"shape": m.shape, "typestr": kind.str, "data": (self.address(operand), False), "version": 3,
                "strides": tuple(s * kind.itemsize for s in m.strides)}

    def address(self, operand: Operand) -> int:
        """Return the address of a tensor's first element; the next operation may move it."""
        m = operand.meta
        return self._arena + int(operand.block.offset) + m.offset * m.dtype.itemsize

    def close(self) -> None:
        """Wait for the streams, then free all memory, events and streams."""
        self.streams.wait_for_all()
        self.group.close()
        self.staging.close()
        self._pages.close()
        if self._arena:
            self.vendor.free(self._arena)
        self._arena = 0
        self.vendor.close()
