"""Matrix products through BLAS, written straight into their outputs. Knows arrays; no tensors, no devices."""

import numpy as np

from minidl.kernels.cpu.blocks import BLOCK_BYTES, Array
from minidl.kernels.cpu.elementwise import sum_to


def matmul(y: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> None:
    np.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b, out=y)


def linear(y: Array, x: Array, w: Array, b: Array | None = None) -> None:
    """x w^T + b"""
    if x.flags.c_contiguous:  # all rows in one product; else one product a leading index, without a copy
        np.matmul(x.reshape(-1, x.shape[-1]), w.T, out=y.reshape(-1, y.shape[-1]))
    else:
        np.matmul(x, w.T, out=y)
    if b is not None:
        y += b


def linear_dgrad(dx: Array, dy: Array, w: Array) -> None:
    """dy w"""
    if dy.flags.c_contiguous:
        np.matmul(dy.reshape(-1, dy.shape[-1]), w, out=dx.reshape(-1, dx.shape[-1]))
    else:
        np.matmul(dy, w, out=dx)


def linear_wgrad(dw: Array, dy: Array, x: Array) -> None:
    """dy^T x, summed over all rows"""
    if dy.ndim == 2 or (dy.flags.c_contiguous and x.flags.c_contiguous):
        np.matmul(dy.reshape(-1, dy.shape[-1]).T, x.reshape(-1, x.shape[-1]), out=dw)
        return
    dw.fill(0)
    for index in np.ndindex(dy.shape[:-2]):
        add_product(dw, dy[index].T, x[index])


def add_product(c: Array, a: Array, b: Array) -> None:
    """c += a b, a few rows at a time so that the product to be added stays about one block.  All 2-D."""
    rows = max(32, 4 * BLOCK_BYTES // max(1, c.shape[1] * c.itemsize))
    for start in range(0, c.shape[0], rows):
        c[start:start + rows] += a[start:start + rows] @ b


def bias_grad(db: Array, dy: Array, *, axis: int) -> None:
    """Sum over every axis but one."""
    shape = tuple(n if i == axis else 1 for i, n in enumerate(dy.shape))
    sum_to(db.reshape(shape), dy, shape=shape)
