"""A vendor without a GPU: it checks every call that the CUDA device makes, and can execute them in host memory.

Checked at every call:

  order       by vector clocks of streams and events (``races``): only what is certain before a piece of work
  memory      copies lie within allocations and do not overlap; a copy stream uses page-locked memory only
  arguments   as many as the kernel's signature has, each of its exact width and kind; pointers lead into the
              operands of the announced call, or into its workspace
  products    every element that cuBLAS would touch lies within the operands
  plans       the workspace is as large as the plan asks for
  notes       a recorder is read only when nothing runs
  messages    those of a group between GPUs (``fake_nccl``), which arrive when something waits for their stream

Time is modelled: a stream is busy while a piece of work runs, and the host continues. With ``numerics`` device memory
is real host memory, products and convolutions are computed from their descriptions and addresses alone, and kernels are
stand-ins that run the CPU's kernel of the same name on their pointers. Work happens when it is issued, so numbers show
only the order of issue; the vector clocks check the order of streams.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
from fake_nccl import FakeNccl, NcclCommunicator
from numpy.lib.stride_tricks import as_strided
from races import NAMES, Violation
from watch import OPS, Watched

from minidl.device.clock import COMPUTE, Timed
from minidl.device.contract import Operand
from minidl.device.cuda.device import CudaDevice
from minidl.device.cuda.group import OPERATIONS
from minidl.device.cuda.memory_format import channels_last_strides
from minidl.device.cuda.nccl import Nccl
from minidl.device.cuda.seam import ATTENTION_OPERANDS, Attention, Convolution, Gemm, PlanInfo, Properties, TimedWork
from minidl.device.cuda.streams import DEPTH
from minidl.device.profiles import Profile
from minidl.errors import DeviceError, DeviceShort, UserError
from minidl.kernels.cuda.launch import DeviceFunction, Kernel, Launcher, Launches, Number, View
from minidl.meta import DTYPES, Algorithm, Meta, meta, row_major
from minidl.op import Op

CALL_S, KERNEL_S, LINK, LINK_S = 1e-6, 20e-6, 50e9, 10e-6  # the host's call, a kernel, a copy's bandwidth and latency
FREE_BYTES = 1 << 40
PLANS = (PlanInfo("fast", 3000, True), PlanInfo("any order", 512, False), PlanInfo("small", 0, True))
ONE_KERNEL = Lock()  # ranks are threads, and Numba's threads take one parallel kernel at a time
ATTENTION_PLAN = PlanInfo("attention", 5000, True)


@dataclass(eq=False)
class FakeStream:
    """A stream: when it will be idle, and the position that all streams have certainly reached before its next work."""

    number: int
    known: list[int]
    ready: float = 0.0
    ended: bool = True  # an event follows all its work
    arriving: list[Any] = field(default_factory=list)  # groups of messages that have not taken effect

    @property
    def address(self) -> int:
        return self.number


@dataclass(eq=False)
class FakeEvent:
    time: float = -1.0
    known: list[int] = field(default_factory=list)
    stream: FakeStream | None = None


class FakeRecorder:
    """``seam.StreamRecorder``. ``distort`` changes the spans before they are returned, newest first."""

    def __init__(self, fake: FakeCuda, stream: FakeStream) -> None:
        self.fake, self.stream = fake, stream
        self.number: int | None = None
        self.noted: list[TimedWork] = []
        self.distort: Callable[[list[TimedWork]], list[TimedWork] | None] = lambda spans: spans[::-1]

    def tag(self, number: int) -> None:
        self.number = number

    def spans(self) -> list[TimedWork] | None:
        if any(stream.ready > self.fake.host_time for stream in self.fake.streams):
            raise Violation("notes are taken while something is at work")
        noted, self.noted = self.noted, []
        return self.distort(noted)

    def close(self) -> None:
        self.fake.recorder_now = None


class FakeCuda:
    """``seam.Vendor``. ``announced``: address ranges that kernels may touch; None while no call is announced.
    network: CuPy's module for NCCL; None where NCCL is missing. uuid: that of the GPU."""

    def __init__(self, *, numerics: bool = False, memory_bytes: int = FREE_BYTES,
                 lockable_bytes: int = FREE_BYTES, network: FakeNccl | None = None, uuid: str = "GPU-0") -> None:
        self.properties = Properties("Fake", memory_bytes, memory_bytes, (9, 0), "1", uuid=uuid)
        self.module = network
        self.network = Nccl(self._bind, self._nccl)
        self.numerics = numerics
        self.lockable_bytes = lockable_bytes
        self.failing: set[str] = set()  # plans that are listed but do not run
        self.short: set[str] = set()  # plans that fail for lack of memory
        self.streams: list[FakeStream] = []
        self.host_known: list[int] = []
        self.host_time = 0.0
        self.announced: list[tuple[int, int]] | None = None
        self.counts: dict[str, int] = {}
        self.recorder_now: FakeRecorder | None = None
        self.listed = list(PLANS)
        self._device: dict[int, int] = {}  # address -> bytes
        self._host: dict[int, int] = {}
        self._held: dict[int, np.ndarray] = {}
        self._addresses = count(1 << 40, 1 << 38)
        self._workspace: dict[int, tuple[int, int]] = {}  # of cuBLAS, by stream

    # Memory --------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        if sum(self._device.values()) + nbytes > self.properties.memory_bytes:
            raise DeviceError(f"out of memory: {nbytes} bytes")
        if self.numerics:
            address = self._real(nbytes)
        else:
            address = next(self._addresses)
        self._device[address] = nbytes
        return address

    def allocate_host(self, nbytes: int) -> int:
        if sum(self._host.values()) + nbytes > self.lockable_bytes:
            raise DeviceError(f"cuMemHostAlloc of {nbytes} bytes: out of memory (2)")
        address = self._real(nbytes)
        self._host[address] = nbytes
        return address

    def free(self, address: int) -> None:
        del self._device[address]
        self._held.pop(address, None)

    def free_host(self, address: int) -> None:
        del self._host[address], self._held[address]

    def _real(self, nbytes: int) -> int:
        raw = np.empty(nbytes + 256, np.uint8)
        address = raw.ctypes.data + -raw.ctypes.data % 256
        self._held[address] = raw
        return address

    def on_device(self, address: int) -> bool:
        """Return True if an address is in device memory."""
        return any(base <= address < base + size for base, size in self._device.items())

    def _within(self, spans: dict[int, int], address: int, nbytes: int) -> bool:
        return any(base <= address and address + nbytes <= base + size for base, size in spans.items())

    # Streams and events --------------------------------------------------------------------------------------
    def stream(self) -> FakeStream:
        for known in (*(s.known for s in self.streams), self.host_known):
            known.append(0)
        made = FakeStream(len(self.streams), list(self.host_known))
        self.streams.append(made)
        return made

    def event(self) -> FakeEvent:
        return FakeEvent()

    def _work(self, stream: FakeStream, what: str, seconds: float = 0.0) -> None:
        self._call(what)
        NcclCommunicator.land(stream)
        known = self.before(stream.number)
        if stream.ended:  # several calls, up to an event, are one piece of work
            known[stream.number] += 1
            stream.ended = False
        start = max(stream.ready, self.host_time)
        stream.ready = start + seconds
        recorder = self.recorder_now
        if recorder is not None and recorder.stream is stream and recorder.number is not None:
            recorder.noted.append(TimedWork(recorder.number, start, stream.ready))

    def _call(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.host_time += CALL_S

    def before(self, number: int) -> list[int]:
        """Return the position that each stream has certainly reached before a stream's next work."""
        known = self.streams[number].known
        for other, position in enumerate(self.host_known):
            known[other] = max(known[other], position)
        return known

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        self._call("record")
        stream.ready = max(stream.ready, self.host_time)
        stream.ended = True
        event.time, event.known, event.stream = stream.ready, list(self.before(stream.number)), stream

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        self._recorded(event)
        self._call("wait")
        stream.ready = max(stream.ready, event.time)
        self._land(event)
        for other, position in enumerate(event.known):
            stream.known[other] = max(stream.known[other], position)

    def synchronize(self, event: FakeEvent) -> None:
        self._recorded(event)
        self._call("synchronize")
        self.host_time = max(self.host_time, event.time)
        self._seen(event)

    def done(self, event: FakeEvent) -> bool:
        self._recorded(event)
        self.host_time += CALL_S
        if event.time <= self.host_time:
            self._seen(event)
            return True
        return False

    def elapsed(self, start: FakeEvent, end: FakeEvent) -> float:
        self._recorded(start)
        self._recorded(end)
        if max(start.time, end.time) > self.host_time:
            raise Violation("the time of an event that has not been passed")
        if end.time < start.time:
            raise Violation("events in the wrong order")
        return end.time - start.time

    def recorder(self, stream: FakeStream) -> FakeRecorder:
        self._call("recorder")
        if self.recorder_now is not None:
            raise Violation("two recorders at once")
        self.recorder_now = FakeRecorder(self, stream)
        return self.recorder_now

    def _land(self, event: FakeEvent) -> None:
        assert event.stream is not None
        NcclCommunicator.land(event.stream)

    def _seen(self, event: FakeEvent) -> None:
        self._land(event)
        for other, position in enumerate(event.known):
            self.host_known[other] = max(self.host_known[other], position)

    def _recorded(self, event: FakeEvent) -> None:
        if event.time < 0:
            raise Violation("an event that was never recorded")

    # Bytes ---------------------------------------------------------------------------------------------------
    def copy(self, to: int, origin: int, nbytes: int, stream: FakeStream) -> None:
        ends = (to, origin)
        if nbytes <= 0 or to < origin + nbytes and origin < to + nbytes:
            raise Violation(f"a copy of {nbytes} bytes that overlaps itself")
        over_link = 0
        for address in ends:
            if self.on_device(address):
                if not self._within(self._device, address, nbytes):
                    raise Violation("a copy leaves the device's memory")
            else:
                over_link += 1
                if stream.number and not self._within(self._host, address, nbytes):
                    raise Violation(f"{NAMES[stream.number]} copies host memory that is not page-locked")
        self._work(stream, "copy", LINK_S + nbytes / LINK if over_link else nbytes / 1e12)
        if self.numerics:
            ctypes.memmove(to, origin, nbytes)

    def fill(self, address: int, byte: int, nbytes: int, stream: FakeStream) -> None:
        if not self._within(self._device, address, nbytes):
            raise Violation("a fill leaves the device's memory")
        self._work(stream, "fill", nbytes / 1e12)
        if self.numerics:
            ctypes.memset(address, byte, nbytes)

    def array(self, address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> np.ndarray:
        self.touch(address, 1, "a copy for another library")
        if self.streams[0].ready > self.host_time:
            raise Violation("a value is copied while the compute stream is at work")
        return strided(address, shape, strides, dtype).copy()

    # Work ----------------------------------------------------------------------------------------------------
    def touch(self, address: int, nbytes: int, what: str) -> None:
        """Record that a piece of work reads or writes these bytes."""
        if nbytes and not self._within(self._device, address, nbytes):
            raise Violation(f"{what} leaves the device's memory")
        if self.announced is not None and not any(a <= address and address + nbytes <= b for a, b in self.announced):
            raise Violation(f"{what} touches {nbytes} bytes that are none of its call's operands")

    def launch(self, source: DeviceFunction, blocks: int, arguments: Sequence[Any], stream: FakeStream) -> None:
        if len(arguments) != len(source.signature):
            raise Violation(f"{source.name}: {len(arguments)} arguments")
        for kind, argument in zip(source.signature, arguments, strict=True):
            if kind.startswith("*"):
                if type(argument) is not int:
                    raise Violation(f"{source.name}: a pointer is passed as {type(argument).__name__}")
                self.touch(argument, 0, source.name)
            elif not isinstance(argument, np.generic) or argument.dtype.name != kind:
                raise Violation(f"{source.name}: {argument!r} for {kind}")
        if not 0 < blocks < 1 << 31:
            raise Violation(f"{source.name}: {blocks} blocks")
        self._work(stream, "launch", KERNEL_S)
        if self.numerics:
            run_stand_in(source, arguments)

    def set_workspace(self, address: int, nbytes: int, stream: FakeStream) -> None:
        self.touch(address, nbytes, "the workspace of cuBLAS")
        self._workspace[stream.number] = address, nbytes

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: FakeStream) -> None:
        p = product
        if stream.number not in self._workspace:
            raise Violation("cuBLAS would allocate a workspace of its own")
        rows_a, columns_a = (p.k, p.m) if p.transpose_a else (p.m, p.k)
        rows_b, columns_b = (p.n, p.k) if p.transpose_b else (p.k, p.n)
        for name, rows, ld in (("a", rows_a, p.lda), ("b", rows_b, p.ldb), ("c", p.m, p.ldc)):
            if not 0 < rows <= ld < 1 << 31:
                raise Violation(f"{p}: ld{name} is less than {rows} rows")
        itemsize = DTYPES[p.dtype].itemsize
        operands = []
        for address, rows, columns, ld, step in ((a, rows_a, columns_a, p.lda, p.step_a),
                                                 (b, rows_b, columns_b, p.ldb, p.step_b),
                                                 (c, p.m, p.n, p.ldc, p.step_c)):
            extent = (p.count - 1) * step + (columns - 1) * ld + rows
            if address % itemsize:
                raise Violation(f"{p}: an operand at {address}")
            self.touch(address, extent * itemsize, "a product")
            operands.append((address, (p.count, rows, columns), (step, 1, ld)))
        self._work(stream, "gemm", KERNEL_S)
        if self.numerics:
            left, right, result = (strided(*operand, p.dtype) for operand in operands)
            left = left.swapaxes(1, 2) if p.transpose_a else left
            right = right.swapaxes(1, 2) if p.transpose_b else right
            products = left.astype(np.float64) @ right.astype(np.float64)
            result[...] = products + (result if p.accumulate else 0)

    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        self.counts["plans"] = self.counts.get("plans", 0) + 1
        return list(self.listed)

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: FakeStream) -> None:
        c = convolution
        for address, shape in ((x, c.x), (w, c.w), (y, c.y)):
            self.touch(address, int(np.prod(shape)) * DTYPES[c.dtype].itemsize, c.kind)
            if address % 16:
                raise Violation(f"{c.kind}: an operand at {address}, not at a multiple of 16")
        info = next(p for p in self.listed if p.name == plan)
        if plan in self.short:
            raise DeviceShort(f"cuDNN, plan {plan}: CUDNN_STATUS_ALLOC_FAILED")
        if plan in self.failing:
            raise DeviceError(f"cuDNN, plan {plan}: not for this GPU (3000)")
        if info.workspace:
            self.touch(workspace, info.workspace, f"{c.kind}'s workspace")
        self._work(stream, "convolve", KERNEL_S * (1 + self.listed.index(info)))
        if self.numerics:
            from minidl.kernels.cpu import KERNELS
            arrays = {name: strided(address, shape, channels_last_strides(shape), c.dtype)
                      for name, address, shape in (("x", x, c.x), ("w", w, c.w), ("y", y, c.y))}
            names = {"conv2d": "yxw", "conv2d_dgrad": "xyw", "conv2d_wgrad": "wyx"}[c.kind]
            out, *ins = (arrays[name] for name in names)
            result = np.empty(out.shape, out.dtype)
            with ONE_KERNEL:
                KERNELS[c.kind](result, *map(np.ascontiguousarray, ins), stride=c.stride, padding=c.padding)
            out[...] = result

    def attention_plan(self, attention: Attention) -> PlanInfo | None:
        self._call("attention_plan")
        return None if attention.depth % 8 else ATTENTION_PLAN

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: FakeStream) -> None:
        a = attention
        info = ATTENTION_PLAN
        assert plan == info.name and not a.depth % 8
        queries, keys = (a.n, a.length, a.heads * a.depth), (a.n, a.keys, a.heads * a.depth)
        lies = {"lse": ((a.n, a.heads, a.length), "float32"), "mask": (a.mask, a.mask_dtype),
                **dict.fromkeys(("q", "y", "dy", "dq"), (queries, a.dtype)),
                **dict.fromkeys(("k", "v", "dk", "dv"), (keys, a.dtype))}
        names = ATTENTION_OPERANDS[a.gradient]
        arrays = []
        for name, address in zip(names if a.mask else names[:-1], operands, strict=True):
            shape, dtype = lies[name]
            self.touch(address, int(np.prod(shape)) * DTYPES[dtype].itemsize, f"attention's {name}")
            if address % 16:
                raise Violation(f"attention: {name} at {address}, not at a multiple of 16")
            if self.numerics:
                arrays.append(strided(address, shape, row_major(shape), dtype))
        if a.dropout:
            self.touch(seed, 16, "attention's seed")
        self.touch(workspace, info.workspace, "attention's workspace")
        self._work(stream, "attend", KERNEL_S)
        if self.numerics:
            from minidl.kernels.cpu import KERNELS
            numbers = strided(seed, (2,), (1,), "int64") if a.dropout else (0, 0)
            results = [np.empty_like(array) for array in arrays[:3 if a.gradient else 2]]
            name = "scaled_dot_product_attention" + "_grad" * a.gradient
            with ONE_KERNEL:
                KERNELS[name](*results, *arrays[len(results):], heads=a.heads, causal=a.causal, p=a.dropout,
                              seed=int(numbers[0]) ^ int(numbers[1]) << 32)
            for array, result in zip(arrays, results, strict=False):
                array[...] = result

    # NCCL ----------------------------------------------------------------------------------------------------
    def _bind(self) -> None:
        assert self.module is not None
        self.module.here.vendor = self

    def _nccl(self) -> FakeNccl:
        if self.module is None:
            raise UserError("NCCL is missing here")
        return self.module

    def close(self) -> None:
        if self._device or self._host:
            raise Violation(f"not given back: {len(self._device)} pieces of device memory, {len(self._host)} of host's")


def strided(address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> np.ndarray:
    """Return the array at an address; strides in elements."""
    kind = np.dtype(dtype)
    extent = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    raw = (ctypes.c_uint8 * (extent * kind.itemsize)).from_address(address)
    flat = np.frombuffer(raw, kind)
    return as_strided(flat, tuple(shape), tuple(s * kind.itemsize for s in strides))


# Stand-ins for kernels --------------------------------------------------------------------------------------------
def stand_in() -> Any:
    """Never called: the source of stand-in kernels, which are not compiled."""


LAUNCHED = {**OPS, "add_relu": Op("add_relu", OPS["add"].infer)}  # a kernel without an operation of its own


def stand_ins() -> dict[str, Kernel]:
    """Return a kernel for every launched operation, none of which needs a compiler."""
    table = {name: _stand_in(op) for name, op in LAUNCHED.items() if not op.view}
    return {**table, "upload": Upload(table["contiguous"]), "upload_": Upload(table["contiguous"])}


def _stand_in(op: Op) -> Kernel:
    volatile = [name for name in op.volatile if name != "data"]

    def plan(builder: Launches, *views: View, **attrs: Any) -> None:
        metas = tuple(meta(v.shape, v.dtype, v.strides) for v in views)
        scalars = [Number(name, "int64" if name in ("seed", "step") else "float64") for name in volatile]
        builder.launch(stand_in, 1, *views, *scalars, np.int64(len(views)), op=op.name, metas=metas,
                       attrs=tuple(attrs.items()), volatile=tuple(volatile))

    def numbers(**attrs: Any) -> dict[str, Any]:
        return attrs
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in volatile]
    numbers.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return Kernel(plan, numbers if volatile else None)


class Upload(Kernel):
    """The kernel that uploads host values; for other layouts by way of the workspace and ``lay``."""

    def __init__(self, lay: Kernel) -> None:
        super().__init__(lambda builder: None)
        self._lay = lay

    def workspace(self, metas: Sequence[Meta], attrs: dict[str, Any]) -> int:
        return 0 if metas[0].contiguous else metas[0].nbytes

    def issue(self, launcher: Launcher, addresses: Sequence[int], metas: Sequence[Meta], attrs: dict[str, Any],
              workspace: int = 0) -> None:
        (target,) = metas
        if attrs["data"] is None:
            return
        data = np.asarray(attrs["data"], target.dtype.name, order="C")
        launcher.upload(addresses[0] if target.contiguous else workspace, data)
        if not target.contiguous:
            self._lay.issue(launcher, (addresses[0], workspace), (target, meta(target.shape, target.dtype)), {})


def run_stand_in(source: DeviceFunction, arguments: Sequence[Any]) -> None:
    """Run the CPU's kernel on the operands that the arguments point to."""
    from minidl.kernels.cpu import KERNELS
    options = dict(source.options)
    op, metas, attrs = LAUNCHED[options["op"]], options["metas"], dict(options["attrs"])
    views = [strided(a, m.shape, m.strides, m.dtype.name) for a, m in zip(arguments, metas, strict=False)]
    for name, value in zip(options["volatile"], arguments[len(metas):], strict=False):
        attrs[name] = value.item()
    written = range(len(op.outputs)) if op.mutates is None else op.mutates(len(views))
    copies = [view.copy() for view in views]
    for n, name in enumerate(op.inputs, start=0 if op.mutates is not None else len(op.outputs)):
        if name == "mask" and n < len(copies) and copies[n].dtype == np.uint8:  # bytes of 0 and 1 to a GPU's kernels
            copies[n] = copies[n].view(bool)
    with ONE_KERNEL:
        if op.name == "add_relu":
            KERNELS["add"](*copies)
            KERNELS["relu"](copies[0], copies[0])
        else:
            KERNELS[op.name](*copies, **attrs)
    for index in written:
        views[index][...] = copies[index]


# The device, watched ----------------------------------------------------------------------------------------------
class JudgedCuda(CudaDevice):
    """The CUDA device on the fake vendor, which it tells what each call may touch."""

    def __init__(self, profile: Profile, *, numerics: bool = False, reserve_bytes: int = 1 << 16,
                 kernels: dict[str, Kernel] | None = None, cupti: bool = False, depth: int = DEPTH,
                 network: FakeNccl | None = None, uuid: str = "GPU-0") -> None:
        self.fake = FakeCuda(numerics=numerics, network=network, uuid=uuid)
        super().__init__("cuda", profile, self.fake, kernels or stand_ins(), reserve_bytes=reserve_bytes, cupti=cupti,
                         depth=depth)

    def launch(self, op_name: str, algorithm: Algorithm, outputs: Sequence[Operand], inputs: Sequence[Operand],
               attrs: dict[str, Any], workspace: int, timed: Timed = None) -> int:
        spans = [(self._arena + o.base.block.offset, o.base.block.size) for o in (*outputs, *inputs)]
        spans.append((self._arena + workspace, algorithm.workspace))
        self.fake.announced = [(at, at + size) for at, size in spans]
        try:
            return super().launch(op_name, algorithm, outputs, inputs, attrs, workspace, timed)
        finally:
            self.fake.announced = None


class WatchedCuda(Watched, JudgedCuda):
    """A ``JudgedCuda`` whose use of bytes is also checked against the order of its waits and events."""

    def __init__(self, profile: Profile, *, limit: int = 100_000, **options: Any) -> None:
        super().__init__(profile, **options)
        self.order = self.fake
        self.watch(limit=limit)

    def stream_of(self, op_name: str) -> int:
        return self.group.number if op_name in OPERATIONS else COMPUTE

    def starts(self, stream: int) -> float:
        return self.fake.streams[stream].ready


