"""An array as compiled code takes it: one dimension and strides.

Compiled kernels are made once for each type of their arguments, and the layout of an array is part of its type: with
flat arrays there is one version of each kernel for each dtype.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.half import BFLOAT16, FLOAT16
from minidl.meta import Shape, row_major

_INTEGERS: dict[np.dtype[Any], Any] = {BFLOAT16: np.uint16, FLOAT16: np.int16}


def bits(array: Array) -> Array:
    """Halves as the integers that compiled code takes them as (elements.py); any other array itself."""
    return array.view(_INTEGERS[array.dtype]) if array.itemsize == 2 else array


def computed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which values of a dtype are computed: float32 for halves."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def flat(array: Array) -> tuple[Array, Shape]:
    """All elements that an array spans, as one dimension, and the array's strides in elements."""
    array = bits(array)
    dense = row_major(array.shape)
    if array.flags.c_contiguous:
        return array.reshape(-1), dense
    # A dimension of size 1 is never stepped along, but its stride may be anything.
    strides = tuple(d if n == 1 else s // array.itemsize
                    for n, s, d in zip(array.shape, array.strides, dense, strict=True))
    extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
    return as_strided(array, (extent,), (array.itemsize,)), strides


def row(vector: Array) -> Array:
    """A vector whose elements follow each other; a copy only if they do not."""
    return bits(np.ascontiguousarray(vector).reshape(-1))
