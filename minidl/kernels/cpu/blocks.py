"""Cut arrays into pieces small enough for the cache, so that temporaries stay out of the memory budget.

Knows shapes and nothing of the arithmetic. Cuts follow from shapes alone, never from addresses: bits stay the same.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minidl.meta import Shape

Array = NDArray[Any]
Index = tuple[slice, ...]

BLOCK_BYTES = 256 * 1024  # about what a core's own cache holds next to its temporaries


def index_blocks(shape: Shape, itemsize: int, *, whole: int = 0) -> Iterator[Index]:
    """Indices, one slice a dimension, that cover an array of this shape in C order, each of at most BLOCK_BYTES.

    The last ``whole`` dimensions are never cut, even if they are larger than a block.
    """
    axis = len(shape) - whole - 1
    if axis < 0:
        yield (slice(None),) * len(shape)
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
    """Matching pieces of the arrays, in C order; the others are broadcast to the shape of the first."""
    shape = arrays[0].shape
    if all(a.shape == shape and a.flags.c_contiguous for a in arrays):
        arrays = tuple(a.reshape(-1) for a in arrays)
    else:
        arrays = tuple(a if a.shape == shape else np.broadcast_to(a, shape) for a in arrays)
    for index in index_blocks(arrays[0].shape, arrays[0].itemsize):
        yield tuple(a[index] for a in arrays)
