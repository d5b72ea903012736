"""Matrix products and linear layers, and their gradients, as calls of ``matrices.products``."""

from functools import lru_cache
from math import prod
from typing import Any

import numba
import numpy as np

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.cuts import even, panel, pieces, up
from minidl.kernels.cpu.flat import computed, flat, row
from minidl.kernels.cpu.sums import sum_to
from minidl.meta import Shape

NONE: dict[Any, Array] = {np.dtype(name): np.empty(0, name) for name in ("float32", "float64")}
SERIAL = 1 << 15  # below this number of multiplications one core is faster than several
PANELS, ROWS, TASKS = 5, 256, 8  # panels and rows of a task, at most; tasks, at least, if the shape allows it


@lru_cache(maxsize=1 << 12)
def _starts(batch: Shape, strides: Shape) -> Array:
    """Return the position of the first element of each matrix of a batch, in C order. strides: of ``batch``."""
    starts = np.zeros(batch, np.int64)
    for axis, (count, stride) in enumerate(zip(batch, strides, strict=True)):
        starts += np.arange(count).reshape((-1, *(1,) * (len(batch) - 1 - axis))) * stride
    return starts.reshape(-1)


def _operand(array: Array, batch: Shape) -> tuple[Array, Array, int, int]:
    """Return an operand [.., rows, columns] as (flat array, matrices' starts, elements to next row, to next column)."""
    data, strides = flat(array)
    lead = len(batch) - (array.ndim - 2)
    spread = tuple(0 if i < lead or array.shape[i - lead] == 1 else strides[i - lead] for i in range(len(batch)))
    return data, _starts(batch, spread), strides[-2], strides[-1]


@lru_cache(maxsize=1 << 12)
def _cuts(count: int, m: int, n: int, panel: int) -> tuple[int, int]:
    """Return (rows, columns) of the part of a product that a task computes, for ``count`` products [m, n].
    It is large enough to be worth packing B, and small enough for all cores to have tasks."""
    width = even(pieces(n, panel), PANELS) * panel
    tasks = count * pieces(n, width)
    return up(even(m, max(min(ROWS, pieces(m, pieces(TASKS, tasks))), 32)), 8), width


def _multiply(y: Array, a: Array, b: Array, bias: Array | None = None, *, summed: bool = False) -> None:
    """y = a @ b (+ bias [n]), broadcast over leading dimensions or, if ``summed``, summed over all; y is contiguous."""
    if not (a.size and b.size):  # sums of nothing
        y[...] = 0 if bias is None else bias
        return
    from minidl.kernels.cpu import matrices  # compiled with Numba: not imported by dry runs
    batch, (m, n), k = a.shape[:-2] if summed else y.shape[:-2], y.shape[-2:], a.shape[-1]
    a_flat, b_flat = _operand(a, batch), _operand(b, batch)
    dtype, parts = computed(y.dtype), a_flat[1].size if summed else 1
    cuts = _cuts(a_flat[1].size // parts, m, n, panel(dtype.itemsize))
    workers = 1 if y.size * k < SERIAL else numba.get_num_threads()
    bias = NONE[dtype] if bias is None else np.ascontiguousarray(bias, dtype)
    matrices.products(row(y), *a_flat, *b_flat, bias, parts, m, n, k, *cuts, y.itemsize == 2, workers)


def _rows(array: Array) -> Array:
    """Return [..., n] as a matrix [rows, n]: a view if the layout allows it, else a copy."""
    return array.reshape(prod(array.shape[:-1]), array.shape[-1])


def matmul(y: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> None:
    """y = a @ b; transpose_a, transpose_b first swap an operand's last two dimensions; the others broadcast."""
    _multiply(y, a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)


def linear(y: Array, x: Array, w: Array, b: Array | None = None) -> None:
    """y = x w^T + b.  x: [..., in], w: [out, in], b: [out]."""
    if x.flags.c_contiguous:  # all rows in one product; else one product for each leading index, without a copy
        x, y = _rows(x), _rows(y)
    _multiply(y, x, w.T, b)


def linear_dgrad(dx: Array, dy: Array, w: Array) -> None:
    """dx = dy @ w, the gradient of ``linear`` with respect to x."""
    if dy.flags.c_contiguous:
        dy, dx = _rows(dy), _rows(dx)
    _multiply(dx, dy, w)


def linear_wgrad(dw: Array, dy: Array, x: Array) -> None:
    """dw = dy^T @ x over all rows, the gradient of ``linear`` with respect to w."""
    if dy.ndim > 2 and not (dy.flags.c_contiguous and x.flags.c_contiguous):
        _multiply(dw, dy.swapaxes(-1, -2), x, summed=True)
        return
    _multiply(dw, _rows(dy).T, _rows(x))


def bias_grad(db: Array, dy: Array, *, axis: int) -> None:
    """db = the sum of dy over every dimension except ``axis``."""
    shape = tuple(n if i == axis else 1 for i, n in enumerate(dy.shape))
    sum_to(db.reshape(shape), dy, shape=shape)
