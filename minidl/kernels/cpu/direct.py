"""Convolutions as plain loops: slow, without a workspace. Arrays are flat, with strides.

A row of up to WIDTH results is summed at a time, in float64, in one fixed order; threads divide rows or weights.
"""

from functools import partial
from typing import Any

import numba
import numpy as np

from minidl.kernels import scalar
from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.columns import span
from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.elements import read, write
from minidl.kernels.cpu.flat import flat, row
from minidl.kernels.cpu.windows import Pair

parallel = partial(compiled, parallel=True)
WIDTH = 256

# Arguments of all kernels: shapes of x (N, groups C, H, W), w (K, C, R, S) and y (N, K, P, Q), stride, padding.


@parallel
def _forward(y: Any, x: Any, x_strides: Any, w: Any, b: Any, relu: bool, x_shape: Any, w_shape: Any, y_shape: Any,
             stride: Any, padding: Any) -> None:
    _, k_count, p_count, q_count = y_shape
    _, c_count, r_count, s_count = w_shape
    for plane in numba.prange(y_shape[0] * k_count):
        n, k = plane // k_count, plane % k_count
        c_first = k // (k_count // (x_shape[1] // c_count)) * c_count
        sums = np.empty(WIDTH)
        for p in range(p_count):
            for left in range(0, q_count, WIDTH):
                right = min(left + WIDTH, q_count)
                sums[:] = read(b, k) if b.size else 0.0
                for c in range(c_count):
                    for r in range(r_count):
                        h = p * stride[0] + r - padding[0]
                        if h < 0 or h >= x_shape[2]:
                            continue
                        start = n * x_strides[0] + (c_first + c) * x_strides[1] + h * x_strides[2]
                        for s in range(s_count):
                            factor = np.float64(read(w, ((k * c_count + c) * r_count + r) * s_count + s))
                            first, last = span(q_count, x_shape[3], s, stride[1], padding[1])
                            for q in range(max(first, left), min(last, right)):
                                place = start + (q * stride[1] + s - padding[1]) * x_strides[3]
                                sums[q - left] += factor * read(x, place)
                for q in range(left, right):
                    result = sums[q - left]
                    write(y, (plane * p_count + p) * q_count + q, scalar.relu(result) if relu else result)


@parallel
def _input_gradient(dx: Any, dy: Any, dy_strides: Any, w: Any, onto: Any, onto_strides: Any, x_shape: Any,
                    w_shape: Any, y_shape: Any, stride: Any, padding: Any) -> None:
    _, channels, height, width = x_shape
    _, c_count, r_count, s_count = w_shape
    k_count = w_shape[0] // (channels // c_count)  # of a group
    for plane in numba.prange(x_shape[0] * channels):
        n, channel = plane // channels, plane % channels
        k_first, c = channel // c_count * k_count, channel % c_count
        sums = np.empty(WIDTH)
        for h in range(height):
            for left in range(0, width, WIDTH):
                right = min(left + WIDTH, width)
                sums[:] = 0
                if onto.size:
                    start = n * onto_strides[0] + channel * onto_strides[1] + h * onto_strides[2]
                    for i in range(left, right):
                        sums[i - left] = read(onto, start + i * onto_strides[3])
                for r in range(r_count):
                    p = (h + padding[0] - r) // stride[0]
                    if p * stride[0] != h + padding[0] - r or p < 0 or p >= y_shape[2]:
                        continue
                    for s in range(s_count):
                        # Results i = q stride + s - padding, of which the first and the last are inside the row.
                        first = max(0, -((s - padding[1] - left) // stride[1]))
                        last = min(y_shape[3], (right - 1 + padding[1] - s) // stride[1] + 1)
                        for k in range(k_first, k_first + k_count):
                            factor = np.float64(read(w, ((k * c_count + c) * r_count + r) * s_count + s))
                            start = n * dy_strides[0] + k * dy_strides[1] + p * dy_strides[2]
                            for q in range(first, last):
                                i = q * stride[1] + s - padding[1] - left
                                sums[i] += factor * read(dy, start + q * dy_strides[3])
                for i in range(left, right):
                    write(dx, (plane * height + h) * width + i, sums[i - left])


@parallel
def _weight_gradient(dw: Any, dy: Any, dy_strides: Any, x: Any, x_strides: Any, x_shape: Any, w_shape: Any,
                     y_shape: Any, stride: Any, padding: Any) -> None:
    _, c_count, r_count, s_count = w_shape
    for pair in numba.prange(w_shape[0] * c_count):
        k, c = pair // c_count, pair % c_count
        group_at = k // (w_shape[0] // (x_shape[1] // c_count)) * c_count * x_strides[1]
        for r in range(r_count):
            first_p, last_p = span(y_shape[2], x_shape[2], r, stride[0], padding[0])
            for s in range(s_count):
                first, last = span(y_shape[3], x_shape[3], s, stride[1], padding[1])
                total = 0.0
                for n in range(y_shape[0]):
                    for p in range(first_p, last_p):
                        left = n * dy_strides[0] + k * dy_strides[1] + p * dy_strides[2]
                        right = (group_at + n * x_strides[0] + c * x_strides[1] + (p * stride[0] + r - padding[0])
                                 * x_strides[2] + (s - padding[1]) * x_strides[3])
                        for q in range(first, last):
                            total += np.float64(read(dy, left + q * dy_strides[3])) * read(
                                x, right + q * stride[1] * x_strides[3])
                write(dw, (pair * r_count + r) * s_count + s, total)


def conv2d(y: Array, x: Array, w: Array, b: Array | None = None, *, stride: Pair, padding: Pair,
           relu: bool = False, **_: Any) -> None:
    """y = cross-correlation of x and w, plus b, with ReLU if ``relu``. x: [N, C, H, W], w: [K, C / groups, R, S]."""
    result = row(y)
    _forward(result, *flat(x), row(w), result[:0] if b is None else row(b), relu, x.shape, w.shape, y.shape, stride,
             padding)


def conv2d_dgrad(dx: Array, dy: Array, w: Array, onto: Array | None = None, *, stride: Pair, padding: Pair,
                 **_: Any) -> None:
    """dx = the gradient of conv2d with respect to x, for the gradient dy of its result; plus ``onto`` if given."""
    result = row(dx)
    base = (result[:0], (0, 0, 0, 0)) if onto is None else flat(onto)
    _input_gradient(result, *flat(dy), row(w), *base, dx.shape, w.shape, dy.shape, stride, padding)


def conv2d_wgrad(dw: Array, dy: Array, x: Array, *, stride: Pair, padding: Pair, **_: Any) -> None:
    """dw = the gradient of conv2d with respect to w, for the gradient dy of its result."""
    _weight_gradient(row(dw), *flat(dy), *flat(x), x.shape, dw.shape, dy.shape, stride, padding)
