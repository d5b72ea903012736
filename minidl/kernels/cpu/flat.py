"""Arrays in the form that compiled code takes: one dimension, and the strides of the original dimensions.

Numba compiles a kernel for each type of its arguments, and an array's layout is part of its type. With flat arrays
there is one version of each kernel for each dtype.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.half import BFLOAT16, FLOAT16
from minidl.meta import Shape, row_major

_INTEGERS: dict[np.dtype[Any], Any] = {BFLOAT16: np.uint16, FLOAT16: np.int16}


def bits(array: Array) -> Array:
    """Return 16-bit floats as the integers that compiled code takes (elements.py); any other array unchanged."""
    return array.view(_INTEGERS[array.dtype]) if array.itemsize == 2 else array


def computed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which values of a dtype are computed: float32 for 16-bit floats."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def flat(array: Array) -> tuple[Array, Shape]:
    """Return the memory from an array's first element to its last, as one dimension, and its strides in elements."""
    array = bits(array)
    dense = row_major(array.shape)
    if array.flags.c_contiguous:
        return array.reshape(-1), dense
    # The stride of a dimension of size 1 is never used, and may be anything.
    strides = tuple(d if n == 1 else s // array.itemsize
                    for n, s, d in zip(array.shape, array.strides, dense, strict=True))
    extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
    return as_strided(array, (extent,), (array.itemsize,)), strides


def row(vector: Array) -> Array:
    """Return an array, or a contiguous copy if it is not contiguous, in one dimension."""
    return bits(np.ascontiguousarray(vector).reshape(-1))
