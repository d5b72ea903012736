"""bfloat16 tensors through DLPack, to and from other libraries: NumPy's own DLPack has no bfloat16.

The structures are those of dlpack.h (https://dmlc.github.io/dlpack/latest/c_api.html): a ``DLTensor`` inside a
``DLManagedTensor`` (before version 1) or a ``DLManagedTensorVersioned``, passed in a capsule that its consumer renames.
NumPy and CuPy handle all other dtypes. Knows memory by address; no minidl tensors.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.meta import row_major

BFLOAT, BITS = 4, 16  # kDLBfloat
HOST = 1  # kDLCPU
NAME, USED_NAME = b"dltensor", b"used_dltensor"
VERSIONED, USED_VERSIONED = b"dltensor_versioned", b"used_dltensor_versioned"


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", _Deleter), ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_api = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_api.PyCapsule_IsValid.restype = ctypes.c_int
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
# These take a bare pointer: a capsule that is being destroyed must not gain a reference.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

_exported: dict[int, tuple[Any, ...]] = {}  # objects that keep an exported tensor alive, by its structure's address


def _release_export(managed: int) -> None:
    """Release an exported tensor that its consumer has finished with."""
    _exported.pop(managed, None)


def _drop_unconsumed(capsule: int) -> None:
    """Release an exported tensor whose capsule is destroyed unconsumed."""
    if _is_valid(capsule, NAME):
        _release_export(_pointer(capsule, NAME))


_release, _forgotten = _Deleter(_release_export), _Destructor(_drop_unconsumed)  # as C calls them


class Bfloat16:
    """An array of bfloat16 values in some memory that supports DLPack.

    owner: kept alive until the last consumer releases the values. strides in elements. device: (kind, number) of
    DLPack.
    """

    def __init__(self, owner: Any, address: int, shape: Sequence[int], strides: Sequence[int],
                 device: tuple[int, int]) -> None:
        self._owner = owner
        self._address = address
        self._shape, self._strides = tuple(shape), tuple(strides)
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: tuple[int, int] | None = None,
                   copy: bool | None = None) -> Any:
        """Return an unversioned capsule, which every library accepts. The values are ready: no stream waits.
        Raises BufferError if ``dl_device`` is another device; the other arguments are ignored."""
        if dl_device is not None and tuple(dl_device) != self._device:
            raise BufferError(f"bfloat16 on device {self._device} cannot be given on device {tuple(dl_device)}")
        extents = ctypes.c_int64 * len(self._shape)
        shape, strides = extents(*self._shape), extents(*self._strides)
        managed = _Managed(_Tensor(self._address, *self._device, len(self._shape), BFLOAT, BITS, 1, shape, strides, 0),
                           None, _release)
        address = ctypes.addressof(managed)
        _exported[address] = managed, shape, strides, self._owner
        return _api.PyCapsule_New(address, NAME, _forgotten)


def of_host(values: np.ndarray) -> Bfloat16:
    """Wrap a host array of bfloat16, without a copy."""
    return Bfloat16(values, values.ctypes.data, values.shape, [s // values.itemsize for s in values.strides], (HOST, 0))


@dataclass(frozen=True, slots=True)
class Foreign:
    """The memory of another library's bfloat16 values: device, address, shape, and strides in elements."""

    device: tuple[int, int]
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@contextmanager
def borrowed(exporter: Any) -> Iterator[Foreign | None]:
    """Give the memory of an object's bfloat16 values inside a ``with`` block; None if its dtype is another one.

    On a GPU the values are ready for work on the default stream.
    """
    capsule = exporter.__dlpack__()
    versioned = bool(_api.PyCapsule_IsValid(capsule, VERSIONED))
    name, used = (VERSIONED, USED_VERSIONED) if versioned else (NAME, USED_NAME)
    address = _api.PyCapsule_GetPointer(capsule, name)
    managed: Any = (_ManagedVersioned if versioned else _Managed).from_address(address)
    _api.PyCapsule_SetName(capsule, used)  # from here on it is ours to delete
    try:
        tensor = managed.tensor
        if (tensor.code, tensor.bits, tensor.lanes) != (BFLOAT, BITS, 1):
            yield None
            return
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else row_major(shape)
        yield Foreign((tensor.device_type, tensor.device_id), (tensor.data or 0) + tensor.byte_offset, shape, strides)
    finally:
        if managed.deleter:
            managed.deleter(address)


def to_host(exporter: Any) -> np.ndarray | None:
    """Return a host copy of an object's bfloat16 values; None if it has another dtype or is not in host memory."""
    with borrowed(exporter) as found:
        if found is None or found.device[0] != HOST:
            return None
        if 0 in found.shape:
            return np.empty(found.shape, ml_dtypes.bfloat16)
        extent = 1 + sum((n - 1) * s for n, s in zip(found.shape, found.strides, strict=True))
        raw = (ctypes.c_uint16 * extent).from_address(found.address)
        flat = np.ctypeslib.as_array(raw).view(ml_dtypes.bfloat16)
        return as_strided(flat, found.shape, [2 * s for s in found.strides]).copy()
