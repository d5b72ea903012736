"""Convolutions as plain loops, compiled by Numba: no workspace at all, slowly. Knows arrays and nothing else.

Every output is summed in one fixed order, by one thread: several of a device's threads may then call it at once.
"""

from typing import Any

import numba
import numpy as np

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.windows import Pair

_compiled = numba.njit(cache=True, nogil=True)


@_compiled
def _span(count: int, size: int, tap: int, stride: int, padding: int) -> Any:
    """First and one past the last of ``count`` outputs whose tap falls inside [0, size)."""
    return max(0, -((tap - padding) // stride)), min(count, (size - 1 + padding - tap) // stride + 1)


@_compiled
def _forward(y: Array, x: Array, w: Array, stride: Pair, padding: Pair) -> None:
    for n in range(y.shape[0]):
        for k in range(y.shape[1]):
            for p in range(y.shape[2]):
                y[n, k, p, :] = 0
                for c in range(x.shape[1]):
                    for r in range(w.shape[2]):
                        h = p * stride[0] + r - padding[0]
                        if h < 0 or h >= x.shape[2]:
                            continue
                        for s in range(w.shape[3]):
                            weight = w[k, c, r, s]
                            first, last = _span(y.shape[3], x.shape[3], s, stride[1], padding[1])
                            for q in range(first, last):
                                y[n, k, p, q] += weight * x[n, c, h, q * stride[1] + s - padding[1]]


@_compiled
def _input_gradient(dx: Array, dy: Array, w: Array, stride: Pair, padding: Pair) -> None:
    for n in range(dx.shape[0]):
        for c in range(dx.shape[1]):
            for k in range(dy.shape[1]):
                for r in range(w.shape[2]):
                    first_p, last_p = _span(dy.shape[2], dx.shape[2], r, stride[0], padding[0])
                    for s in range(w.shape[3]):
                        weight = w[k, c, r, s]
                        first, last = _span(dy.shape[3], dx.shape[3], s, stride[1], padding[1])
                        for p in range(first_p, last_p):
                            h = p * stride[0] + r - padding[0]
                            for q in range(first, last):
                                dx[n, c, h, q * stride[1] + s - padding[1]] += weight * dy[n, k, p, q]


@_compiled
def _weight_gradient(dw: Array, dy: Array, x: Array, stride: Pair, padding: Pair) -> None:
    for k in range(dw.shape[0]):
        for c in range(dw.shape[1]):
            for r in range(dw.shape[2]):
                first_p, last_p = _span(dy.shape[2], x.shape[2], r, stride[0], padding[0])
                for s in range(dw.shape[3]):
                    first, last = _span(dy.shape[3], x.shape[3], s, stride[1], padding[1])
                    total = 0.0  # float64, as there is only one of it
                    for n in range(dy.shape[0]):
                        for p in range(first_p, last_p):
                            h = p * stride[0] + r - padding[0]
                            for q in range(first, last):
                                total += dy[n, k, p, q] * x[n, c, h, q * stride[1] + s - padding[1]]
                    dw[k, c, r, s] = total


def conv2d(y: Array, x: Array, w: Array, b: Array | None = None, *, stride: Pair, padding: Pair) -> None:
    """Cross-correlation.  x: [N, C, H, W], w: [K, C, R, S], b: [K], y: [N, K, P, Q]."""
    _forward(y, x, w, stride, padding)
    if b is not None:
        y += b[:, None, None]


def conv2d_dgrad(dx: Array, dy: Array, w: Array, onto: Array | None = None, *, stride: Pair, padding: Pair,
                 **_: Any) -> None:
    """Gradient with respect to x, added to ``onto`` if given."""
    np.copyto(dx, 0 if onto is None else onto)
    _input_gradient(dx, dy, w, stride, padding)


def conv2d_wgrad(dw: Array, dy: Array, x: Array, *, stride: Pair, padding: Pair, **_: Any) -> None:
    """Gradient with respect to w."""
    _weight_gradient(dw, dy, x, stride, padding)
