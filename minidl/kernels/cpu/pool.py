"""Pooling in NumPy, one tap of the window after the other. Knows arrays; no tensors, no devices."""

from collections.abc import Iterator

import numpy as np

from minidl.kernels.cpu.blocks import Array, Index, index_blocks
from minidl.kernels.cpu.windows import Pair, taps
from minidl.meta import Shape


def _planes(x: Array) -> Iterator[Index]:
    """Pieces of [N, C, H, W] that keep planes whole."""
    return index_blocks(x.shape, x.itemsize, whole=2)


def _first_valid(output: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """[P, Q]: index of the first tap of each window that is not padding."""
    r, s = (np.maximum(0, pad - np.arange(n) * step) for n, step, pad in zip(output, stride, padding, strict=True))
    return (r[:, None] * kernel[1] + s).astype(np.uint8)


def max_pool2d(y: Array, index: Array, x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """Maximum of each window and its position r * S + s, the first of equal ones; a NaN is larger than all."""
    output = y.shape[2:]
    window = tuple(taps(x.shape[2:], output, kernel, stride, padding))
    start = _first_valid(output, kernel, stride, padding)  # what a window of -inf alone reports
    for planes in _planes(x):
        x_part, y_part, index_part = x[planes], y[planes], index[planes]
        y_part.fill(-np.inf)
        index_part[...] = start
        for tap in window:
            best = y_part[..., tap.rows, tap.columns]
            value = x_part[..., tap.in_rows, tap.in_columns]
            better = ~(value <= best)  # larger, or one of the two is NaN ...
            better &= ~np.isnan(best)  # ... and it is not the one that we have
            np.copyto(best, value, where=better)
            np.copyto(index_part[..., tap.rows, tap.columns], tap.r * kernel[1] + tap.s, where=better)


def max_pool2d_grad(dx: Array, dy: Array, index: Array, *, x_shape: Shape, kernel: Pair, stride: Pair,
                    padding: Pair) -> None:
    """Each dy goes to the position that its window's maximum had; overlapping windows add up."""
    window = tuple(taps(x_shape[2:], dy.shape[2:], kernel, stride, padding))
    for planes in _planes(dx):
        dx_part, dy_part, index_part = dx[planes], dy[planes], index[planes]
        dx_part.fill(0)
        for tap in window:
            target = dx_part[..., tap.in_rows, tap.in_columns]
            chosen = index_part[..., tap.rows, tap.columns] == tap.r * kernel[1] + tap.s
            np.add(target, dy_part[..., tap.rows, tap.columns], out=target, where=chosen)


def avg_pool2d(y: Array, x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """Mean of each window, padding counted as zeros."""
    window = tuple(taps(x.shape[2:], y.shape[2:], kernel, stride, padding))
    for planes in _planes(x):
        x_part, y_part = x[planes], y[planes]
        y_part.fill(0)
        for tap in window:
            y_part[..., tap.rows, tap.columns] += x_part[..., tap.in_rows, tap.in_columns]
        y_part /= kernel[0] * kernel[1]


def avg_pool2d_grad(dx: Array, dy: Array, *, x_shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """dy / (R S) to every position of the window that is not padding."""
    window = tuple(taps(x_shape[2:], dy.shape[2:], kernel, stride, padding))
    for planes in _planes(dx):
        dx_part, share = dx[planes], dy[planes] / (kernel[0] * kernel[1])
        dx_part.fill(0)
        for tap in window:
            dx_part[..., tap.in_rows, tap.in_columns] += share[..., tap.rows, tap.columns]


def _cells(size: Shape, output: Shape) -> Iterator[tuple[int, int, slice, slice, int]]:
    """(i, j, input rows, input columns, area) of each adaptive window: floor(i H / h) to ceil((i + 1) H / h)."""
    for i in range(output[0]):
        rows = slice(i * size[0] // output[0], -(-(i + 1) * size[0] // output[0]))
        for j in range(output[1]):
            columns = slice(j * size[1] // output[1], -(-(j + 1) * size[1] // output[1]))
            yield i, j, rows, columns, (rows.stop - rows.start) * (columns.stop - columns.start)


def adaptive_avg_pool2d(y: Array, x: Array, *, size: Pair) -> None:
    """Mean of each cell of a ``size`` grid over the plane."""
    for i, j, rows, columns, area in _cells(x.shape[2:], size):
        total = np.add.reduce(x[..., rows, columns], axis=(2, 3), dtype=np.float64)
        y[..., i, j] = total / area


def adaptive_avg_pool2d_grad(dx: Array, dy: Array, *, x_shape: Shape) -> None:
    """dy / area to every position of its cell; cells may overlap by one row or column."""
    dx.fill(0)
    for i, j, rows, columns, area in _cells(x_shape[2:], dy.shape[2:]):
        dx[..., rows, columns] += (dy[..., i, j] / area)[..., None, None]
