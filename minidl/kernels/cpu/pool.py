"""Pooling of [N, C, H, W], one plane [H, W] (the pixels of one channel of one image) at a time."""

from collections.abc import Callable

import numpy as np
from numba import prange

from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled
from minidl.kernels.cpu.sums import total
from minidl.kernels.cpu.windows import Pair
from minidl.meta import Shape


@compiled
def _covered(count: int, size: int, tap: int, stride: int, padding: int) -> tuple[int, int]:
    """Return (first, one past the last) of the outputs whose window has its element ``tap`` inside [0, size).
    count: the number of outputs."""
    first = max(0, -((tap - padding) // stride))
    return first, max(first, min(count, (size - 1 + padding - tap) // stride + 1))


@PieceLoop
def _max_pool(y: Array, index: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """y, index = each window's maximum and its position in the window. x: [planes, H, W], y, index: [planes, P, Q]."""
    for plane in prange(y.shape[0]):
        for p in range(y.shape[1]):
            top = p * stride[0] - padding[0]
            first_r, last_r = max(0, -top), min(kernel[0], x.shape[1] - top)
            for q in range(y.shape[2]):
                left = q * stride[1] - padding[1]
                first_s, last_s = max(0, -left), min(kernel[1], x.shape[2] - left)
                chosen = first_r * kernel[1] + first_s  # the index for a window of -inf only
                best = x.dtype.type(-np.inf)
                for r in range(first_r, last_r):
                    for s in range(first_s, last_s):
                        value = x[plane, top + r, left + s]
                        if not value <= best and best == best:  # larger, or the first NaN
                            best, chosen = value, r * kernel[1] + s
                y[plane, p, q], index[plane, p, q] = best, chosen


@PieceLoop
def _max_pool_grad(dx: Array, dy: Array, index: Array, kernel: Pair, stride: Pair, padding: Pair) -> None:
    for plane in prange(dy.shape[0]):
        dx[plane] = 0
        for p in range(dy.shape[1]):
            for q in range(dy.shape[2]):
                tap = index[plane, p, q]
                h, w = p * stride[0] - padding[0] + tap // kernel[1], q * stride[1] - padding[1] + tap % kernel[1]
                dx[plane, h, w] += dy[plane, p, q]


@PieceLoop
def _avg_pool(y: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair) -> None:
    size = x.dtype.type(kernel[0] * kernel[1])
    for plane in prange(y.shape[0]):
        for p in range(y.shape[1]):
            y[plane, p] = 0
            for r in range(kernel[0]):
                h = p * stride[0] - padding[0] + r
                if h < 0 or h >= x.shape[1]:
                    continue
                for s in range(kernel[1]):
                    first, last = _covered(y.shape[2], x.shape[2], s, stride[1], padding[1])
                    for q in range(first, last):
                        y[plane, p, q] += x[plane, h, q * stride[1] - padding[1] + s]
            for q in range(y.shape[2]):
                y[plane, p, q] /= size


@PieceLoop
def _avg_pool_grad(dx: Array, dy: Array, kernel: Pair, stride: Pair, padding: Pair) -> None:
    size = dy.dtype.type(kernel[0] * kernel[1])
    for plane in prange(dy.shape[0]):
        dx[plane] = 0
        for p in range(dy.shape[1]):
            for r in range(kernel[0]):
                h = p * stride[0] - padding[0] + r
                if h < 0 or h >= dx.shape[1]:
                    continue
                for s in range(kernel[1]):
                    first, last = _covered(dy.shape[2], dx.shape[2], s, stride[1], padding[1])
                    for q in range(first, last):
                        dx[plane, h, q * stride[1] - padding[1] + s] += dy[plane, p, q] / size


@PieceLoop
def _global_avg_pool(y: Array, x: Array) -> None:
    """y = the mean of each whole plane. y: [planes], x: [planes, H W]."""
    for plane in prange(y.size):
        y[plane] = total(x[plane]) / x.shape[1]


@PieceLoop
def _adaptive_avg_pool(y: Array, x: Array) -> None:
    for plane in prange(y.shape[0]):
        for i in range(y.shape[1]):
            top, bottom = i * x.shape[1] // y.shape[1], -(-(i + 1) * x.shape[1] // y.shape[1])
            for j in range(y.shape[2]):
                left, right = j * x.shape[2] // y.shape[2], -(-(j + 1) * x.shape[2] // y.shape[2])
                cell = 0.0
                for h in range(top, bottom):
                    for w in range(left, right):
                        cell += x[plane, h, w]
                y[plane, i, j] = cell / ((bottom - top) * (right - left))


@PieceLoop
def _adaptive_avg_pool_grad(dx: Array, dy: Array) -> None:
    for plane in prange(dy.shape[0]):
        dx[plane] = 0
        for i in range(dy.shape[1]):
            top, bottom = i * dx.shape[1] // dy.shape[1], -(-(i + 1) * dx.shape[1] // dy.shape[1])
            for j in range(dy.shape[2]):
                left, right = j * dx.shape[2] // dy.shape[2], -(-(j + 1) * dx.shape[2] // dy.shape[2])
                share = dy[plane, i, j] / dy.dtype.type((bottom - top) * (right - left))
                for h in range(top, bottom):
                    for w in range(left, right):
                        dx[plane, h, w] += share


def _planes(a: Array) -> Array:
    """Return [N, C, H, W] as a view [N * C, H, W]."""
    return a.reshape(-1, *a.shape[2:])


def _by_planes(run: Callable[..., None], result: Array, *operands: Array, options: tuple[Pair, ...] = ()) -> None:
    """Run the kernel ``run(work, result, *operands, *options)`` on pieces of [N, C, H, W] that are whole planes."""
    largest = max((result, *operands), key=lambda a: a.size)
    for planes in pieces(largest.shape, result, *operands, whole=2):
        places = planes[:2]
        part, sources = result[places], [source(operand[places]) for operand in operands]
        values = room(part)
        run(max(part.size, sources[0].size), _planes(values), *map(_planes, sources), *options)
        settle(part, values)


def max_pool2d(y: Array, index: Array, x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """y, index = the maximum of each window and its position r * S + s, the first of equal ones; NaN is largest."""
    for planes in pieces(x.shape, y, x, whole=2):
        part, positions = y[planes[:2]], index[planes[:2]]
        results, values = room(part), source(x[planes])
        _max_pool(values.size, _planes(results), _planes(positions), _planes(values), kernel, stride, padding)
        settle(part, results)


def max_pool2d_grad(dx: Array, dy: Array, index: Array, *, x_shape: Shape, kernel: Pair, stride: Pair,
                    padding: Pair) -> None:
    """dx = each dy at the position of its window's maximum, 0 elsewhere; overlapping windows add up."""
    _by_planes(_max_pool_grad, dx, dy, index, options=(kernel, stride, padding))


def avg_pool2d(y: Array, x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """y = the mean of each window, with padding counted as zeros."""
    _by_planes(_avg_pool, y, x, options=(kernel, stride, padding))


def avg_pool2d_grad(dx: Array, dy: Array, *, x_shape: Shape, kernel: Pair, stride: Pair, padding: Pair) -> None:
    """dx = the sum of dy / (R * S) over the windows [R, S] that contain each position of x."""
    _by_planes(_avg_pool_grad, dx, dy, options=(kernel, stride, padding))


def adaptive_avg_pool2d(y: Array, x: Array, *, size: Pair) -> None:
    """y = the mean of each cell of an h x w grid: rows floor(i H / h) to ceil((i + 1) H / h) - 1, columns alike."""
    _by_planes(_mean_of_planes if size == (1, 1) else _adaptive_avg_pool, y, x)


def _mean_of_planes(work: int, y: Array, x: Array) -> None:
    _global_avg_pool(work, y.reshape(-1), x.reshape(y.size, -1))


def adaptive_avg_pool2d_grad(dx: Array, dy: Array, *, x_shape: Shape) -> None:
    """dx = the sum of dy / area over the cells that contain each position; cells may overlap by one row or column."""
    _by_planes(_adaptive_avg_pool_grad, dx, dy)
