"""The dimensions of a loop over strided operands: as few as possible, in memory order.

Every layout is handled by strides: channels-last maps that are used together are one dense dimension here; other
combinations cost index arithmetic, never a wrong result.
"""

from collections.abc import Sequence

from minidl.meta import Shape

Dimension = tuple[int, ...]  # extent, then the stride of each operand

RANK = 4  # dimensions that kernels walk over


def merged(shape: Shape, *strides: Shape) -> list[Dimension]:
    """Return the dimensions of operands of one shape, in order of the first one's strides, merged where possible.

    The outermost comes first. Dimensions of extent 1 are dropped; a single element has no dimension.
    """
    dims = sorted(((n, *steps) for n, *steps in zip(shape, *strides, strict=True) if n != 1), key=lambda d: -d[1])
    result: list[Dimension] = []
    for n, *steps in dims:
        if result and all(outer == n * inner for outer, inner in zip(result[-1][1:], steps, strict=True)):
            result[-1] = (result[-1][0] * n, *steps)
        else:
            result.append((n, *steps))
    return result


def padded(dims: Sequence[Dimension], rank: int, operands: int) -> list[Dimension]:
    """Return ``dims`` with outer dimensions of extent 1 added, up to ``rank`` of them, each with ``operands`` strides.
    """
    return [(1,) * 1 + (0,) * operands] * (rank - len(dims)) + list(dims)


def is_dense(dims: Sequence[Dimension]) -> bool:
    """Return True if all operands are one contiguous run of elements."""
    return not dims or (len(dims) == 1 and all(step == 1 for step in dims[0][1:]))


def digits(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """Return the index, one number per dimension, of element ``number`` in C order of an array of these extents."""
    result = []
    for extent in reversed(extents):
        result.append(number % extent)
        number //= extent
    return tuple(reversed(result))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << max(0, number - 1).bit_length()
