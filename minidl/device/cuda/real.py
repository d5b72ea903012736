"""The vendor's libraries: the driver by cuda.bindings, cuBLAS by ctypes, cuDNN by its frontend, NCCL by CuPy.

It executes the seam's calls one for one, and decides nothing. The driver works in the context that is current in the
calling thread, so each call first makes this GPU's context current: several GPUs may be open, and any thread may call.
A change of context by another library in between is not noticed.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Device as CoreDevice
from cuda.pathfinder import load_nvidia_dynamic_lib

from minidl.device.cuda.attention_graphs import AttentionGraphs
from minidl.device.cuda.cublas import Cublas
from minidl.device.cuda.cudnn_graphs import CudnnGraphs
from minidl.device.cuda.nccl import Nccl
from minidl.device.cuda.packed import PackedKernel
from minidl.device.cuda.seam import Attention, Convolution, Extent, Gemm, PlanInfo, Properties, StreamRecorder
from minidl.errors import DeviceError
from minidl.kernels.cuda.compile import Compiler
from minidl.kernels.cuda.launch import DeviceFunction


class _Bound(threading.local):
    """The vendor whose context minidl has made current in this thread."""

    vendor: "Cuda | None" = None


_bound = _Bound()


@dataclass(frozen=True, slots=True, eq=False)
class CudaStream:
    """One stream, in the two forms that the libraries need."""

    handle: Any  # the driver's
    address: int


def count_gpus() -> int:
    """Return the number of GPUs that this process sees (CUDA_VISIBLE_DEVICES)."""
    check(driver.cuInit(0), "cuInit")
    return int(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))


class Cuda:
    """``seam.Vendor`` on the GPU of this number. Raises DeviceError if it does not exist or cannot be used."""

    def __init__(self, number: int = 0) -> None:
        count = count_gpus()
        if number >= count:
            raise DeviceError(f"cuda:{number} does not exist: there are {count} GPUs")
        self._device = CoreDevice(number)
        self._device.set_current()
        self._context = check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
        _bound.vendor = self
        capability = self._device.compute_capability
        free, total = check(driver.cuMemGetInfo(), "cuMemGetInfo")
        self._graphs = CudnnGraphs()
        self._attention = AttentionGraphs(self._graphs.handle)
        self._cublas = Cublas(ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path))
        runtime = check(driver.cuDriverGetVersion(), "cuDriverGetVersion")
        self.properties = Properties(
            self._device.name, total, free, (capability.major, capability.minor),
            f"cudnn{self._graphs.version}-cublas{self._cublas.version}-driver{runtime}", self._graphs.version,
            self._device.uuid)
        self.network = Nccl(self._bind)
        self._compiler = Compiler((capability.major, capability.minor))
        self._kernels: dict[DeviceFunction, PackedKernel] = {}
        self._product_stream: CudaStream | None = None
        self._made: list[tuple[Callable[[Any], Any], Any]] = []  # (destructor, stream or event)

    def _bind(self) -> None:
        """Make this GPU's context current in the calling thread. Methods call this if another context is current."""
        check(driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        _bound.vendor = self

    # Memory --------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        """Allocate device memory by cuMemAlloc; return its address. Raises DeviceError if there is not enough."""
        self._bind()
        return int(check(driver.cuMemAlloc(nbytes), f"cuMemAlloc of {nbytes} bytes"))

    def free(self, address: int) -> None:
        """Free device memory."""
        self._bind()
        check(driver.cuMemFree(address), "cuMemFree")

    def allocate_host(self, nbytes: int) -> int:
        """Allocate page-locked memory of exactly this size by cuMemHostAlloc. Raises DeviceError if it fails."""
        self._bind()
        return int(check(driver.cuMemHostAlloc(nbytes, 0), f"cuMemHostAlloc of {nbytes} bytes"))

    def free_host(self, address: int) -> None:
        """Free page-locked memory."""
        self._bind()
        check(driver.cuMemFreeHost(address), "cuMemFreeHost")

    # Streams and events --------------------------------------------------------------------------------------
    def stream(self) -> CudaStream:
        """Create a stream that does not wait for the default stream."""
        self._bind()
        handle = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
        self._made.append((driver.cuStreamDestroy, handle))
        return CudaStream(handle, int(handle))

    def event(self) -> Any:
        """Create an event that records its time."""
        self._bind()
        event = check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT), "cuEventCreate")
        self._made.append((driver.cuEventDestroy, event))
        return event

    def record(self, event: Any, stream: CudaStream) -> None:
        """Record an event after all work issued to a stream so far."""
        if _bound.vendor is not self:
            self._bind()
        error, = driver.cuEventRecord(event, stream.handle)
        if error:
            check((error,), "cuEventRecord")

    def wait(self, stream: CudaStream, event: Any) -> None:
        """Make a stream wait for the last recording of an event."""
        if _bound.vendor is not self:
            self._bind()
        error, = driver.cuStreamWaitEvent(stream.handle, event, 0)
        if error:
            check((error,), "cuStreamWaitEvent")

    def synchronize(self, event: Any) -> None:
        """Block the host until an event is complete."""
        if _bound.vendor is not self:
            self._bind()
        check(driver.cuEventSynchronize(event), "cuEventSynchronize")

    def done(self, event: Any) -> bool:
        """Return True if an event is complete."""
        if _bound.vendor is not self:
            self._bind()
        error, = driver.cuEventQuery(event)
        if error:
            if error == driver.CUresult.CUDA_ERROR_NOT_READY:
                return False
            check((error,), "cuEventQuery")
        return True

    def elapsed(self, start: Any, end: Any) -> float:
        """Return the seconds between two complete events, in the driver's steps of about half a microsecond."""
        if _bound.vendor is not self:
            self._bind()
        error, milliseconds = driver.cuEventElapsedTime(start, end)
        if error:
            check((error,), "cuEventElapsedTime")
        return float(milliseconds) * 1e-3

    def recorder(self, stream: CudaStream) -> StreamRecorder:
        """Return a recorder of a stream by CUPTI, which is imported here. Raises DeviceError if it cannot record."""
        from minidl.device.cuda.cupti_recorder import CuptiRecorder

        self._bind()
        return CuptiRecorder(int(self._context), stream.address)

    # Bytes ---------------------------------------------------------------------------------------------------
    def copy(self, to: int, origin: int, nbytes: int, stream: CudaStream) -> None:
        """Copy bytes in stream order; the driver infers the direction from the addresses."""
        if _bound.vendor is not self:
            self._bind()
        error, = driver.cuMemcpyAsync(to, origin, nbytes, stream.handle)
        if error:
            check((error,), "cuMemcpyAsync")

    def fill(self, address: int, byte: int, nbytes: int, stream: CudaStream) -> None:
        """Set each of ``nbytes`` bytes of device memory to ``byte``, in stream order."""
        self._bind()
        check(driver.cuMemsetD8Async(address, byte, nbytes, stream.handle), "cuMemsetD8Async")

    def array(self, address: int, shape: Extent, strides: Extent, dtype: str) -> Any:
        """Return a copy of these device values as a CuPy array (strides in elements), once the copy is complete."""
        import cupy

        self._bind()
        kind = np.dtype(dtype)
        extent = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
        with cupy.cuda.Device(self._device.device_id):
            memory = cupy.cuda.UnownedMemory(address, extent * kind.itemsize, self, self._device.device_id)
            lying = cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0),
                                 strides=tuple(s * kind.itemsize for s in strides))
            copied = lying.copy()
            cupy.cuda.get_current_stream().synchronize()
        return copied

    # Kernels -------------------------------------------------------------------------------------------------
    def launch(self, source: DeviceFunction, blocks: int, arguments: Sequence[int | np.generic],
               stream: CudaStream) -> None:
        """Run a kernel; compile its source at the first launch."""
        if _bound.vendor is not self:
            self._bind()
        kernel = self._kernels.get(source)
        if kernel is None:
            kernel = self._kernels[source] = PackedKernel(source, self._compiler.kernel(source))
        kernel.pack(*arguments)
        error, = driver.cuLaunchKernel(kernel.function, blocks, 1, 1, source.threads, 1, 1, 0, stream.handle,
                                       kernel.pointers, 0)
        if error:
            check((error,), f"launch of {source.name}: cuLaunchKernel")

    # cuBLAS --------------------------------------------------------------------------------------------------
    def set_workspace(self, address: int, nbytes: int, stream: CudaStream) -> None:
        """Set the stream and the workspace memory of cuBLAS, for good."""
        self._bind()
        self._cublas.work_in(stream.address, address, nbytes)
        self._product_stream = stream

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: CudaStream) -> None:
        """Run one product, or a strided batch of them, on the stream of ``set_workspace``."""
        assert stream is self._product_stream, "products run on the stream that has a workspace"
        if _bound.vendor is not self:
            self._bind()
        self._cublas.gemm(product, c, a, b)

    # cuDNN ---------------------------------------------------------------------------------------------------
    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """Return the plans for a convolution that can be built, in the order of cuDNN's heuristics."""
        self._bind()
        return self._graphs.plans(convolution)

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: CudaStream) -> None:
        """Run a convolution or its gradient by the plan of this name. x, w, y, workspace: addresses.
        The kind says which of x, w and y is written. Raises DeviceError if there is no such plan or it fails."""
        if _bound.vendor is not self:
            self._bind()
        self._graphs.run(convolution, plan, x, w, y, workspace, stream.address)

    def attention_plan(self, attention: Attention) -> PlanInfo | None:
        """Return cuDNN's first plan for attention that adds in a fixed order; None if it has none."""
        self._bind()
        return self._attention.plan(attention)

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: CudaStream) -> None:
        """Run attention by the plan of this name."""
        if _bound.vendor is not self:
            self._bind()
        self._attention.run(attention, plan, operands, seed, workspace, stream.address)

    def close(self) -> None:
        """Destroy handles, events and streams, whose work must have ended; modules end with the context."""
        self._bind()
        self._attention.close()
        self._graphs.close()
        self._cublas.close()
        while self._made:  # in reverse order
            destroy, made = self._made.pop()
            check(destroy(made), "cuEventDestroy, cuStreamDestroy")
        _bound.vendor = None


def check(result: Sequence[Any], call: str) -> Any:
    """Return the values of a driver call. Raises DeviceError with the call, the driver's message and its code."""
    error, *values = result
    if error:
        _, name = driver.cuGetErrorName(error)
        _, words = driver.cuGetErrorString(error)
        text = b": ".join(word for word in (name, words) if word).decode()
        raise DeviceError(f"{call}: {text or 'an unknown error'} ({int(error)})")
    return values[0] if len(values) == 1 else tuple(values)
