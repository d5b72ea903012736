"""The outputs and inputs that belong to each tap, a position in a sliding window; shared by convolutions and pooling.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from minidl.meta import Shape

Pair = tuple[int, int]


def covered(out_from: int, out_to: int, size: int, tap: int, stride: int, padding: int) -> tuple[slice, slice]:
    """Return two slices for one tap: the outputs whose input at that tap is inside [0, size), and these inputs.

    The outputs are those of [out_from, out_to), counted from out_from; both slices may be empty.
    """
    first = max(out_from, -((tap - padding) // stride))  # smallest p with p * stride + tap - padding >= 0
    last = min(out_to, (size - 1 + padding - tap) // stride + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + tap - padding
    return slice(first - out_from, last - out_from), slice(start, start + (last - first - 1) * stride + 1, stride)


@dataclass(frozen=True, slots=True)
class Tap:
    """One position (r, s) in the window, with the outputs that have an input there.
    rows, columns: the outputs whose input there is not padding; in_rows, in_columns: these inputs."""

    r: int
    s: int
    rows: slice
    columns: slice
    in_rows: slice
    in_columns: slice


def taps(size: Shape, output: Shape, kernel: Shape, stride: Pair, padding: Pair, *,
         rows: tuple[int, int] | None = None) -> Iterator[Tap]:
    """Yield every tap of the window, row by row, over all output rows or the rows from rows[0] to before rows[1].

    ``size``, ``output`` and ``kernel`` are (height, width) of the input plane, the output plane and the window.
    """
    out_from, out_to = rows or (0, output[0])
    across = [covered(0, output[1], size[1], s, stride[1], padding[1]) for s in range(kernel[1])]
    for r in range(kernel[0]):
        down, in_down = covered(out_from, out_to, size[0], r, stride[0], padding[0])
        for s, (columns, in_columns) in enumerate(across):
            yield Tap(r, s, down, columns, in_down, in_columns)
