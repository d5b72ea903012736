"""Converts arrays of any library to NumPy arrays, and checks that a tensor can hold their values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidl import device as devices
from minidl.device import dlpack
from minidl.errors import ShapeError, UserError
from minidl.meta import DTYPES, DType, Shape, boolean, float32


def host_array(data: Any, device: devices.Device) -> np.ndarray:
    """Return an array's values as a NumPy array, copied only if they are on another device or NumPy lacks their dtype.
    Raises UserError for nested lists of unequal lengths."""
    if getattr(data, "requires_grad", False) and hasattr(data, "detach"):
        data = data.detach()  # a parameter of PyTorch has to be detached first
    exports = hasattr(data, "__dlpack_device__")
    if exports and data.__dlpack_device__()[0] != dlpack.HOST:
        try:
            return np.from_dlpack(data, device="cpu")
        except (BufferError, RuntimeError, TypeError):  # the array's library cannot copy it to the host
            return device.fetch(data)
    if not exports and hasattr(data, "__cuda_array_interface__"):
        return device.fetch(data)
    try:
        return np.asarray(data)
    except TypeError:
        values = dlpack.to_host(data) if exports else None
        if values is None:
            raise
        return values
    except ValueError as error:
        raise UserError(f"these data are no array: {error}") from None


def plain_dtype(data: Any, array: np.ndarray) -> DType | None:
    """Return float32 for Python floats and sequences of them, as layers compute in it; None for all other data."""
    if array.dtype != np.float64:
        return None
    while isinstance(data, Sequence) and len(data):
        data = data[0]
    return None if hasattr(data, "dtype") else float32


def checked(array: np.ndarray, shape: Shape | None, dtype: DType | None) -> tuple[np.ndarray, DType]:
    """Return the array, and the dtype of the tensor for its values: the array's own, unless ``dtype`` is given.

    A given dtype takes booleans as 0 and 1. One of integers cuts fractions off, and every value must lie in its range;
    a floating one may round, to infinity too. For bool the array is compared with 0. Raises ShapeError for another
    shape than ``shape``, UserError for an unknown dtype or values that do not fit.
    """
    if shape is not None and tuple(shape) != array.shape:
        raise ShapeError(f"data of shape {list(array.shape)} for a tensor of shape {list(shape)}")
    name = array.dtype.name
    wanted = dtype or DTYPES.get(name)
    if wanted is None:
        raise UserError(f"there are no tensors of {name}: convert the data, or say dtype= ({', '.join(DTYPES)})")
    if name not in DTYPES and array.dtype.kind not in "biuf":
        raise UserError(f"values of {name} are no {wanted.name}: convert the data first")
    if wanted is boolean:
        return array != 0, wanted
    if name != wanted.name and not wanted.floating and array.dtype.kind != "b" and array.size:
        limits = np.iinfo(wanted.name)
        low, high = array.min(), array.max()
        if not (limits.min <= low and high <= limits.max):  # False for NaN, too
            raise UserError(f"values from {low} to {high} do not fit {wanted.name}")
    return array, wanted
