"""The vendor's libraries themselves: the driver by cuda.bindings, launches by cuda.core, products by cuBLAS through
CuPy's binding, convolutions and attention by cuDNN (``cudnn_graphs``, ``attention_graphs``). Carries out the seam's
calls one for one, and decides nothing.

cuBLAS is given its workspace by ``set_workspace``, which CuPy's binding lacks: it is called in the same library.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver
from cuda.core import Device as CoreDevice
from cuda.core import LaunchConfig, Stream, launch
from cuda.pathfinder import load_nvidia_dynamic_lib
from cupy_backends.cuda.libs import cublas

from minidl.device.cuda.attention_graphs import AttentionGraphs
from minidl.device.cuda.cudnn_graphs import CudnnGraphs
from minidl.device.cuda.seam import Attention, Convolution, Extent, Gemm, PlanInfo, Properties, Recorder
from minidl.errors import DeviceError
from minidl.kernels.cuda.compile import Compiler
from minidl.kernels.cuda.launch import Source

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType_t


@dataclass(frozen=True, slots=True, eq=False)
class CudaStream:
    """One stream under the names that the libraries know it by."""

    handle: Any  # the driver's
    core: Stream
    address: int


class Cuda:
    """``seam.Vendor`` on the GPU of this number. Raises DeviceError if there is none, or it cannot be used."""

    def __init__(self, number: int = 0) -> None:
        check(driver.cuInit(0))
        count = check(driver.cuDeviceGetCount())
        if number >= count:
            raise DeviceError(f"cuda:{number} does not exist: there are {count} GPUs")
        self._device = CoreDevice(number)
        self._device.set_current()
        capability = self._device.compute_capability
        free, total = check(driver.cuMemGetInfo())
        self._graphs = CudnnGraphs()
        self._attention = AttentionGraphs(self._graphs.handle)
        self._cublas = cublas.create()
        runtime = check(driver.cuDriverGetVersion())
        self.properties = Properties(
            self._device.name, total, free, (capability.major, capability.minor),
            f"cudnn{self._graphs.version}-cublas{cublas.getVersion(self._cublas)}-driver{runtime}")
        self._compiler = Compiler((capability.major, capability.minor))
        self._kernels: dict[Source, Any] = {}
        # The same by identity, with its source, so that it stays its own: hashing a source takes longer than a launch.
        self._found: dict[int, tuple[Source, Any]] = {}
        self._configs: dict[tuple[int, int], LaunchConfig] = {}
        self._one32, self._zero32 = np.ones(1, np.float32), np.zeros(1, np.float32)
        self._one64, self._zero64 = np.ones(1, np.float64), np.zeros(1, np.float64)
        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        self._set_workspace = library.cublasSetWorkspace_v2
        self._set_workspace.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._product_stream: CudaStream | None = None

    # Memory --------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        """Device memory, by cuMemAlloc. Raises DeviceError if there is not enough."""
        return int(check(driver.cuMemAlloc(nbytes), f"{nbytes} bytes of device memory"))

    def free(self, address: int) -> None:
        """Give device memory back."""
        check(driver.cuMemFree(address))

    def allocate_host(self, nbytes: int) -> int:
        """Page-locked memory of exactly this size, by cuMemHostAlloc. Raises DeviceError if it cannot be locked."""
        return int(check(driver.cuMemHostAlloc(nbytes, 0), f"{nbytes} bytes of page-locked memory"))

    def free_host(self, address: int) -> None:
        """Give page-locked memory back."""
        check(driver.cuMemFreeHost(address))

    # Streams and events --------------------------------------------------------------------------------------
    def stream(self) -> CudaStream:
        """A new stream that does not wait for the default stream."""
        handle = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        return CudaStream(handle, Stream.from_handle(int(handle)), int(handle))

    def event(self) -> Any:
        """A new event that keeps its time."""
        return check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT))

    def record(self, event: Any, stream: CudaStream) -> None:
        """Put an event behind all that a stream was given."""
        error, = driver.cuEventRecord(event, stream.handle)
        if error:
            check((error,))

    def wait(self, stream: CudaStream, event: Any) -> None:
        """Let a stream wait for an event as it was recorded last."""
        check(driver.cuStreamWaitEvent(stream.handle, event, 0))

    def synchronize(self, event: Any) -> None:
        """Let the host wait for an event."""
        check(driver.cuEventSynchronize(event))

    def done(self, event: Any) -> bool:
        """Whether an event has been passed."""
        error, = driver.cuEventQuery(event)
        if error == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((error,))
        return True

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds between two events that have been passed; the driver counts in steps of about half a microsecond."""
        return float(check(driver.cuEventElapsedTime(start, end))) * 1e-3

    def recorder(self, stream: CudaStream) -> Recorder:
        """A recorder of a stream by CUPTI, which is imported here. Raises DeviceError where it cannot record."""
        from minidl.device.cuda.cupti_recorder import CuptiRecorder

        return CuptiRecorder(int(check(driver.cuCtxGetCurrent())), stream.address)

    # Bytes ---------------------------------------------------------------------------------------------------
    def copy(self, to: int, origin: int, nbytes: int, stream: CudaStream) -> None:
        """Copy bytes in stream order; the driver sees from the addresses which way."""
        check(driver.cuMemcpyAsync(to, origin, nbytes, stream.handle))

    def fill(self, address: int, byte: int, nbytes: int, stream: CudaStream) -> None:
        """Set bytes of device memory in stream order."""
        check(driver.cuMemsetD8Async(address, byte, nbytes, stream.handle))

    def array(self, address: int, shape: Extent, strides: Extent, dtype: str) -> Any:
        """A CuPy array of its own with what lies there (strides in elements), when the copy has been made."""
        kind = np.dtype(dtype)
        extent = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
        memory = cupy.cuda.UnownedMemory(address, extent * kind.itemsize, self, self._device.device_id)
        lying = cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0),
                             strides=tuple(s * kind.itemsize for s in strides))
        copied = lying.copy()
        cupy.cuda.get_current_stream().synchronize()
        return copied

    # Kernels -------------------------------------------------------------------------------------------------
    def launch(self, source: Source, blocks: int, arguments: Sequence[int | np.generic], stream: CudaStream) -> None:
        """Run a kernel; its source is compiled when it comes for the first time."""
        found = self._found.get(id(source))
        if found is None:
            kernel = self._kernels.get(source)
            if kernel is None:
                kernel = self._kernels[source] = self._compiler.kernel(source)
            found = self._found[id(source)] = source, kernel
        key = blocks, source.threads
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = LaunchConfig(grid=blocks, block=source.threads)
        launch(stream.core, config, found[1], *arguments)

    # cuBLAS --------------------------------------------------------------------------------------------------
    def set_workspace(self, address: int, nbytes: int, stream: CudaStream) -> None:
        """Give cuBLAS its stream and, for good, the memory that it works in."""
        cublas.setStream(self._cublas, stream.address)  # this takes cuBLAS's own workspace again, so it comes first
        status = self._set_workspace(self._cublas, address, nbytes)
        if status:
            raise DeviceError(f"cublasSetWorkspace: status {status}")
        self._product_stream = stream

    def gemm(self, product: Gemm, c: int, a: int, b: int, stream: CudaStream) -> None:
        """One product, or a strided batch of them, on the stream of ``set_workspace``."""
        assert stream is self._product_stream, "products run on the stream that has a workspace"
        p = product
        double = p.dtype == "float64"
        one, zero = (self._one64, self._zero64) if double else (self._one32, self._zero32)
        compute = (cublas.CUBLAS_COMPUTE_64F if double else cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if p.tf32
                   else cublas.CUBLAS_COMPUTE_32F)
        kind = DATA_TYPES[p.dtype]
        beta = (one if p.accumulate else zero).ctypes.data
        if p.count == 1:
            cublas.gemmEx(self._cublas, int(p.transpose_a), int(p.transpose_b), p.m, p.n, p.k, one.ctypes.data,
                          a, kind, p.lda, b, kind, p.ldb, beta, c, kind, p.ldc, compute, cublas.CUBLAS_GEMM_DEFAULT)
            return
        cublas.gemmStridedBatchedEx(
            self._cublas, int(p.transpose_a), int(p.transpose_b), p.m, p.n, p.k, one.ctypes.data,
            a, kind, p.lda, p.step_a, b, kind, p.ldb, p.step_b, beta, c, kind, p.ldc, p.step_c, p.count, compute,
            cublas.CUBLAS_GEMM_DEFAULT)

    # cuDNN ---------------------------------------------------------------------------------------------------
    def plans(self, convolution: Convolution) -> list[PlanInfo]:
        """Every plan of cuDNN for a convolution, in the order of its heuristics."""
        return self._graphs.plans(convolution)

    def convolve(self, convolution: Convolution, plan: str, x: int, w: int, y: int, workspace: int,
                 stream: CudaStream) -> None:
        """Run a convolution by the plan of this name."""
        self._graphs.run(convolution, plan, x, w, y, workspace, stream.address)

    def attention_plans(self, attention: Attention) -> list[PlanInfo]:
        """Every plan of cuDNN for attention; [] where it has none."""
        return self._attention.plans(attention)

    def attend(self, attention: Attention, plan: str, operands: Sequence[int], seed: int, workspace: int,
               stream: CudaStream) -> None:
        """Run attention by the plan of this name."""
        self._attention.run(attention, plan, operands, seed, workspace, stream.address)

    def close(self) -> None:
        """Streams, events and modules go with the context, at the process's end."""
        self._attention.close()
        self._graphs.close()
        if self._cublas is not None:
            cublas.destroy(self._cublas)
            self._cublas = None


def check(result: Sequence[Any], what: str = "") -> Any:
    """The values of a driver call. Raises DeviceError with the driver's own words."""
    error, *values = result
    if error:
        _, name = driver.cuGetErrorName(error)
        _, words = driver.cuGetErrorString(error)
        text = b": ".join(word for word in (name, words) if word).decode()
        raise DeviceError(f"{what}: {text}" if what else text)
    return values[0] if len(values) == 1 else tuple(values)
