"""Cuts arrays into pieces that fit the cache, and copies pieces that kernels cannot read directly.

Kernels take *plain* arrays: contiguous, in a type that a processor computes in. Pieces of strided or broadcast arrays
are copied, and pieces of 16-bit floats converted to float32, before the kernel runs; results in 16-bit floats are
converted afterwards. So the temporaries stay small and need no memory budget. Cuts follow from shapes alone, never from
addresses, so bits stay the same.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minidl.kernels.cpu.half import decode, encode
from minidl.meta import Shape

Array = NDArray[Any]
Index = tuple[Any, ...]  # slices; for an array without dimensions, an ellipsis

BLOCK_BYTES = 256 * 1024  # about the size of a core's own cache, less temporaries


def index_blocks(shape: Shape, itemsize: int, *, whole: int = 0) -> Iterator[Index]:
    """Yield indices, one slice per dimension, of pieces that cover an array in C order, each of at most BLOCK_BYTES.

    The last ``whole`` dimensions are never cut, even if they are larger than that.
    """
    axis = len(shape) - whole - 1
    if axis < 0:
        yield (slice(None),) * len(shape) or (...,)  # () would extract the element of an array without dimensions
        return
    step_bytes = itemsize * prod(shape[axis + 1:])
    while axis > 0 and step_bytes * shape[axis] <= BLOCK_BYTES:
        step_bytes *= shape[axis]
        axis -= 1
    length = max(1, BLOCK_BYTES // max(1, step_bytes))
    rest = (slice(None),) * (len(shape) - axis - 1)
    for lead in np.ndindex(shape[:axis]):
        head = tuple(slice(i, i + 1) for i in lead)
        for start in range(0, shape[axis], length):
            yield (*head, slice(start, min(start + length, shape[axis])), *rest)


def blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield matching pieces of the arrays in C order; all are broadcast to the shape of the first."""
    shape = arrays[0].shape
    if all(a.shape == shape and a.flags.c_contiguous for a in arrays):
        arrays = tuple(a.reshape(-1) for a in arrays)
    else:
        arrays = tuple(a if a.shape == shape else np.broadcast_to(a, shape) for a in arrays)
    for index in index_blocks(arrays[0].shape, arrays[0].itemsize):
        yield tuple(a[index] for a in arrays)


def is_plain(a: Array) -> bool:
    """Return True if an array is plain: contiguous, and not of a two-byte type (bfloat16 or float16)."""
    return a.flags.c_contiguous and a.itemsize != 2


def pieces(shape: Shape, *arrays: Array, whole: int) -> Iterator[Index]:
    """Yield one index for everything if all arrays are plain, else indices of pieces of about BLOCK_BYTES to copy.

    The last ``whole`` dimensions of ``shape`` are not cut.
    """
    if all(map(is_plain, arrays)):
        yield (slice(None),) * len(shape) or (...,)
    else:
        yield from index_blocks(shape, 4, whole=whole)


def source(part: Array) -> Array:
    """Return a piece of an operand as a plain array: the piece itself, or a copy."""
    if part.itemsize == 2:
        return decode(part)
    return part if part.flags.c_contiguous else np.ascontiguousarray(part)


def room(part: Array) -> Array:
    """Return the array for a kernel's results on an output piece: the piece itself if it is plain, else a temporary."""
    return part if is_plain(part) else np.empty(part.shape, np.float32 if part.itemsize == 2 else part.dtype)


def settle(part: Array, results: Array) -> None:
    """Copy ``results``, which ``room(part)`` has returned, to the output piece ``part``, unless both are one array."""
    if results is part:
        return
    if part.itemsize == 2 and part.flags.c_contiguous:
        encode(part, results)
    else:
        part[...] = results
