"""Matrix products by the cuBLAS library, called through ctypes: one handle, one stream, one workspace.

Python bindings with their own streams set the handle's stream before each product, and every change of a handle's
stream discards its workspace. So minidl calls the library directly and sets stream and workspace once, in this order.
A product's arguments become ctypes objects once: their conversion in each call would take most of the host's time.
Knows the seam's products; no memory and no stream of its own.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from minidl.device.cuda.seam import Gemm
from minidl.errors import DeviceError

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType_t
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77  # cublasComputeType_t
DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT

# A product, which is kept so that its id() stays valid; its function and arguments; those for the addresses of c, a, b.
_Packed = tuple[Gemm, Callable[..., int], tuple[Any, ...], c_void_p, c_void_p, c_void_p]

SIGNATURES = {
    "cublasCreate_v2": [POINTER(c_void_p)], "cublasDestroy_v2": [c_void_p],
    "cublasGetVersion_v2": [c_void_p, POINTER(c_int)], "cublasSetStream_v2": [c_void_p, c_void_p],
    "cublasSetWorkspace_v2": [c_void_p, c_void_p, c_size_t],
}


class Cublas:
    """A handle of the cuBLAS library (``ctypes.CDLL``). A failed call raises DeviceError with the library's message."""

    def __init__(self, library: Any) -> None:
        for name, arguments in SIGNATURES.items():
            getattr(library, name).argtypes = arguments
        library.cublasGetStatusString.argtypes, library.cublasGetStatusString.restype = [c_int], c_char_p
        self._library = library
        self._gemm, self._batched = library.cublasGemmEx, library.cublasGemmStridedBatchedEx
        self._packed: dict[int, _Packed] = {}  # by id() of the product: a hash of it takes longer
        handle, version = c_void_p(), c_int()
        self._check("cublasCreate", library.cublasCreate_v2(byref(handle)))
        self._handle: int | None = handle.value
        self._check("cublasGetVersion", library.cublasGetVersion_v2(handle, byref(version)))
        self.version = version.value
        # alpha and beta of a product, read on the host: 1 and 0, in the dtype of the sums.
        self._factors = (c_float(1), c_float(0)), (c_double(1), c_double(0))
        self._single, self._double = ([ctypes.addressof(f) for f in pair] for pair in self._factors)

    def work_in(self, stream: int, address: int, nbytes: int) -> None:
        """Use this stream and this workspace memory from now on."""
        # A change of the stream discards the workspace, so the stream is set first.
        self._check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, stream))
        self._check("cublasSetWorkspace", self._library.cublasSetWorkspace_v2(self._handle, address, nbytes))

    def gemm(self, p: Gemm, c: int, a: int, b: int) -> None:
        """Run one product, or a strided batch of them, on operands at these addresses."""
        packed = self._packed.get(id(p))
        if packed is None:
            packed = self._packed[id(p)] = self._pack(p)
        _, function, arguments, at_c, at_a, at_b = packed
        at_c.value, at_a.value, at_b.value = c, a, b
        status = function(*arguments)
        if status:
            self._check(f"cublasGemm of {p.m} x {p.n} x {p.k} in {p.dtype}", status)

    def _pack(self, p: Gemm) -> _Packed:
        """Return the function that runs a product, and its arguments as ctypes objects; ints are C's int to ctypes."""
        double = p.dtype == "float64"
        one, zero = map(c_void_p, self._double if double else self._single)
        compute = COMPUTE_64F if double else COMPUTE_32F_FAST_TF32 if p.tf32 else COMPUTE_32F
        kind, beta = DATA_TYPES[p.dtype], one if p.accumulate else zero
        at_c, at_a, at_b = c_void_p(), c_void_p(), c_void_p()
        shape = c_void_p(self._handle), int(p.transpose_a), int(p.transpose_b), p.m, p.n, p.k, one
        if p.count == 1:
            return p, self._gemm, (*shape, at_a, kind, p.lda, at_b, kind, p.ldb, beta, at_c, kind, p.ldc,
                                   compute, DEFAULT_ALGORITHM), at_c, at_a, at_b
        return p, self._batched, (*shape, at_a, kind, p.lda, c_int64(p.step_a), at_b, kind, p.ldb, c_int64(p.step_b),
                                  beta, at_c, kind, p.ldc, c_int64(p.step_c), p.count, compute,
                                  DEFAULT_ALGORITHM), at_c, at_a, at_b

    def close(self) -> None:
        """Destroy the handle."""
        if self._handle is not None:
            self._library.cublasDestroy_v2(self._handle)
            self._handle = None

    def _check(self, call: str, status: int) -> None:
        if status:
            words = self._library.cublasGetStatusString(status) or b"unknown"
            raise DeviceError(f"{call}: {words.decode()} ({status})")
