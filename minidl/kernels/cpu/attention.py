"""Softmax over the last dimension, and its gradient, one row at a time. A row is all elements along the last dimension.
"""

from math import prod

import numpy as np
from numba import prange

from minidl.kernels import scalar
from minidl.kernels.cpu.blocks import Array, is_plain, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled
from minidl.kernels.cpu.elementwise import CHUNK, bring
from minidl.kernels.cpu.sums import largest, total, total_product
from minidl.meta import Shape


@compiled
def soften(row: Array) -> float:
    """Replace the row by exp(row - max(row)), in place; return the sum of the new values."""
    top = largest(row)
    for i in range(row.size):
        row[i] = scalar.exp(row[i] - top)
    result: float = total(row)
    return result


@PieceLoop
def _softmax(y: Array, x: Array) -> None:
    for r in prange(x.shape[0]):
        row = y[r]
        bring(row, x[r])
        divisor = x.dtype.type(soften(row))
        for i in range(row.size):
            row[i] /= divisor


@PieceLoop
def _masked_softmax(y: Array, x: Array, mask: Array, repeat: int) -> None:
    """y = softmax(x + mask) row by row; row r of x uses row (r // repeat) mod (number of rows) of the mask."""
    for r in prange(x.shape[0]):
        row, masked = y[r], mask[r // repeat % mask.shape[0]]
        bring(row, x[r])
        for i in range(row.size):
            row[i] += masked[i]
        divisor = x.dtype.type(soften(row))
        for i in range(row.size):
            row[i] /= divisor


@PieceLoop
def _softmax_grad(dx: Array, dy: Array, y: Array) -> None:
    rows = max(1, CHUNK // y.shape[1])
    for chunk in prange((y.shape[0] + rows - 1) // rows):
        results = np.empty(y.shape[1], y.dtype)  # not in dx, which may share the bytes of dy or y
        for r in range(chunk * rows, min(y.shape[0], (chunk + 1) * rows)):
            dy_row, y_row = dy[r], y[r]
            level = y.dtype.type(total_product(dy_row, y_row))
            for i in range(results.size):
                results[i] = (dy_row[i] - level) * y_row[i]
            bring(dx[r], results)


def rows_of(a: Array) -> Array:
    """Return a contiguous array as a matrix, with all leading dimensions as rows."""
    return a.reshape(prod(a.shape[:-1]), a.shape[-1])


def _repeat(mask: Shape, shape: Shape) -> int | None:
    """Return how many consecutive rows of ``shape`` use one row of the mask; None if that number is not constant.

    Both shapes are without the last dimension. The mask's must be ones, then extents of ``shape``, then ones.
    """
    wide = (1,) * (len(shape) - len(mask)) + mask
    matched = [i for i, (m, n) in enumerate(zip(wide, shape, strict=True)) if m == n != 1]
    first, last = (matched[0], matched[-1] + 1) if matched else (0, 0)
    if wide[first:last] != shape[first:last]:
        return None
    repeat = 1
    for n in shape[last:]:
        repeat *= n
    return repeat


def softmax(y: Array, x: Array, mask: Array | None = None) -> None:
    """y = softmax(x + mask) over the last dimension, or softmax(x) without a mask; sums are added in float64."""
    if mask is not None and is_plain(x) and is_plain(y) and is_plain(mask) and mask.shape[-1:] == x.shape[-1:]:
        repeat = _repeat(mask.shape[:-1], x.shape[:-1])
        if repeat is not None:
            _masked_softmax(x.size, rows_of(y), rows_of(x), rows_of(mask), repeat)
            return
    wide = () if mask is None else (np.broadcast_to(mask, x.shape),)
    for index in pieces(x.shape, y, x, *wide, whole=1):
        part = y[index]
        results = room(part)
        if wide:
            _masked_softmax(part.size, rows_of(results), rows_of(source(x[index])), rows_of(source(wide[0][index])), 1)
        else:
            _softmax(part.size, rows_of(results), rows_of(source(x[index])))
        settle(part, results)


def softmax_grad(dx: Array, dy: Array, y: Array) -> None:
    """dx = y * (dy - sum(dy * y)), row by row: the gradient of y = softmax(x)."""
    for index in pieces(y.shape, dx, dy, y, whole=1):
        part = dx[index]
        results = room(part)
        _softmax_grad(part.size, rows_of(results), rows_of(source(dy[index])), rows_of(source(y[index])))
        settle(part, results)
