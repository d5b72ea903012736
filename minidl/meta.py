"""Descriptions of tensors without their bytes, and costs of operations. Imports nothing of minidl.

A Meta is interned: equal descriptions are one object, so they compare and hash by identity, which keeps the
executor's table of signatures cheap. Shapes are in elements, strides and offset too; nbytes is in bytes.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from threading import RLock
from weakref import WeakValueDictionary

Shape = tuple[int, ...]

# How to index one dimension: () takes all of it, an integer takes one element and removes the dimension,
# (start, stop, step) takes a range; None adds a dimension.
Part = tuple[int, ...] | int | None
Parts = tuple[Part, ...]

ALIGNMENT = 256  # bytes; every block of a device arena starts at a multiple of it


@dataclass(frozen=True, slots=True)
class DType:
    """A data type: its name, its size in bytes, and whether gradients make sense for it."""

    name: str
    itemsize: int
    floating: bool

    def __deepcopy__(self, memo: object) -> "DType":
        return self  # dtypes are compared by identity

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _dtype, (self.name,)


def _dtype(name: str) -> "DType":
    return DTYPES[name]


float64 = DType("float64", 8, True)
float32 = DType("float32", 4, True)
float16 = DType("float16", 2, True)
bfloat16 = DType("bfloat16", 2, True)
int64 = DType("int64", 8, False)
int32 = DType("int32", 4, False)
uint8 = DType("uint8", 1, False)
boolean = DType("bool", 1, False)
DTYPES: dict[str, DType] = {d.name: d for d in (float64, float32, float16, bfloat16, int64, int32, uint8, boolean)}


def wide(dtype: DType) -> DType:
    """Return the dtype in which kernels add up values of ``dtype``: float32 for 16-bit types, else ``dtype`` itself.
    Parameters, their gradients, statistics and losses have it beside activations of ``dtype``."""
    return float32 if dtype.itemsize == 2 else dtype


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Meta:
    """Shape, dtype and layout of a tensor. Make one with :func:`meta`, never directly.

    strides and offset are in elements; size is the number of elements, nbytes their bytes.
    """

    shape: Shape
    dtype: DType
    strides: Shape
    offset: int
    size: int
    nbytes: int
    contiguous: bool

    def __repr__(self) -> str:
        layout = "" if self.contiguous and not self.offset else f" strides {self.strides} offset {self.offset}"
        return f"{self.dtype.name}{list(self.shape)}{layout}"


def row_major(shape: Shape) -> Shape:
    """Return the strides, in elements, of a C-ordered array of this shape."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def chosen(shape: Shape, strides: Shape, parts: Parts) -> tuple[Shape, Shape, int]:
    """Return shape, strides and offset, in elements, of what indexing with ``parts`` selects from a tensor.
    parts: one entry for each dimension, see ``Part``."""
    found: list[int] = []
    steps: list[int] = []
    distance, dims = 0, iter(zip(shape, strides, strict=True))
    for part in parts:
        if part is None:
            found.append(1)
            steps.append(1)
            continue
        size, stride = next(dims)
        if isinstance(part, int):
            distance += part * stride
            continue
        start, stop, step = part or (0, size, 1)
        found.append(max(0, -(-(stop - start) // step)))
        steps.append(stride * step)
        distance += start * stride if found[-1] else 0
    return tuple(found), tuple(steps), distance


# One object for each description, while it is in use. The lock is for two threads that describe the same at once.
_interned: WeakValueDictionary[tuple[Shape, DType, Shape, int], Meta] = WeakValueDictionary()
_interning = RLock()


@lru_cache(maxsize=1 << 14)
def meta(shape: Shape, dtype: DType = float32, strides: Shape | None = None, offset: int = 0) -> Meta:
    """Return the Meta of this shape, dtype, strides (in elements; C order by default) and offset (in elements).
    Raises TypeError for a size that is no integer: 4.0 equals 4, so its Meta would be found for 4 later."""
    shape, offset = tuple(map(index, shape)), index(offset)
    dense = row_major(shape)
    strides = dense if strides is None else tuple(map(index, strides))
    with _interning:
        found = _interned.get((shape, dtype, strides, offset))
        if found is None:
            size = prod(shape)
            # A dimension of size 1 may have any stride: it is never stepped along, nor is any if there are no elements.
            contiguous = not size or all(d == 1 or s == r for d, s, r in zip(shape, strides, dense, strict=True))
            found = Meta(shape, dtype, strides, offset, size, size * dtype.itemsize, contiguous)
            _interned[shape, dtype, strides, offset] = found
        return found


def aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to the arena's alignment of 256 bytes; 0 stays 0."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def block_bytes(nbytes: int) -> int:
    """Return the bytes of the arena's block for a tensor of ``nbytes``; a tensor without elements has a block too."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one call: floating-point operations, bytes moved to or from device memory, and the kind of work.

    ``kind`` selects the efficiency constants of a simulated GPU: conv, matmul, elementwise, reduce, pool, copy, link,
    exchange (``nbytes`` sent to other ranks, and as many received), or host (which does ``nbytes`` in host memory, and
    copies ``link_bytes`` to the host and as many back).
    """

    flops: float
    nbytes: float
    kind: str
    link_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to run a call: its seconds, the bytes of its workspace, and its bits class.

    Algorithms of a call with the same bits_class give bit-for-bit the same result.
    """

    name: str
    seconds: float
    workspace: int = 0
    bits_class: str = ""
