"""The shape of a loop over strided operands: as few dimensions as will do, in the order in which memory lies.

Layout is a matter of strides: a feature map in channels-last order that meets only its like is one dense dimension
here, and one in any other order costs index arithmetic, never a wrong result.
"""

from collections.abc import Sequence

from minidl.meta import Shape

Dimension = tuple[int, ...]  # extent, then the stride of each operand

RANK = 4  # dimensions that kernels walk over


def merged(shape: Shape, *strides: Shape) -> list[Dimension]:
    """The dimensions of operands of one shape, outermost first by the first operand's strides, united where they can.

    Dimensions of extent 1 vanish; a single element has no dimension.
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
    """``rank`` dimensions, the missing outer ones of extent 1."""
    return [(1,) * 1 + (0,) * operands] * (rank - len(dims)) + list(dims)


def is_dense(dims: Sequence[Dimension]) -> bool:
    """True if all operands lie as one run of elements."""
    return not dims or (len(dims) == 1 and all(step == 1 for step in dims[0][1:]))


def digits(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """A number in the mixed base of these extents, the outermost first; what is beyond them is cut off."""
    result = []
    for extent in reversed(extents):
        result.append(number % extent)
        number //= extent
    return tuple(reversed(result))


def power_of_two(number: int) -> int:
    """The least power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()
