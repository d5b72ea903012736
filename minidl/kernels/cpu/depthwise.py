"""Depthwise convolution and its gradients, one plane [H, W] (a channel of an image) at a time.

A padded plane is first sorted into *phases*: with stride (t, u), phase (a, b) has its elements at rows a, a + t, and so
on, and at columns b, b + u, and so on. All outputs then read a position of the window from one phase at
consecutive addresses, also from one row of outputs to the next. So a whole plane of outputs is one loop over each
position of the window, for every stride, padding and dilation:

    forward               y[i] += w[r, s] phase[first + i]
    input's gradient      phase[i] += w[r, s] dy[i - first]
    weight's gradient     dw[r, s] += the sum of dy[i] phase[first + i]

Rows of outputs are as far apart as rows of a phase; the elements between them are not used, and are 0 in dy, which has
zeros before and after it, too. Three positions of the window at a time are added, so that sums are read less often.
"""

from collections.abc import Callable

import numpy as np
from numba import prange

from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled
from minidl.kernels.cpu.sums import total_product
from minidl.kernels.cpu.windows import Pair
from minidl.meta import Shape


@compiled
def _extents(outputs: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[int, int, int]:
    """Return the rows and columns of a phase, and the number of elements from its first output to its last."""
    rows = outputs[0] + (kernel[0] - 1) * dilation[0] // stride[0]
    columns = outputs[1] + (kernel[1] - 1) * dilation[1] // stride[1]
    return rows, columns, (outputs[0] - 1) * columns + outputs[1]


@compiled
def _first(tap: int, columns: int, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[int, int]:
    """Return (phase, place in it) of the first element that position ``tap`` = r S + s of the window reads."""
    down, right = tap // kernel[1] * dilation[0], tap % kernel[1] * dilation[1]
    phase = down % stride[0] * stride[1] + right % stride[1]
    return phase, down // stride[0] * columns + right // stride[1]


@compiled
def _inside(size: int, phase: int, extent: int, stride: int, padding: int) -> tuple[int, int]:
    """Return (first, one past the last) of a phase's rows, or columns, that are rows or columns of the plane."""
    first = max(0, -((phase - padding) // stride))
    return first, max(first, min(extent, (size - 1 + padding - phase) // stride + 1))


@compiled
def _transfer(phases: Array, plane: Array, rows: int, columns: int, stride: Pair, padding: Pair, back: bool) -> None:
    """Copy a plane into its phases [t u, rows * columns], or, if ``back``, phases into their plane.
    Elements of either that the other has no place for stay as they are."""
    for a in range(stride[0]):
        top, bottom = _inside(plane.shape[0], a, rows, stride[0], padding[0])
        for b in range(stride[1]):
            left, right = _inside(plane.shape[1], b, columns, stride[1], padding[1])
            for i in range(top, bottom):
                phase = phases[a * stride[1] + b, i * columns:(i + 1) * columns]
                line = plane[i * stride[0] + a - padding[0]]
                if back:
                    for j in range(left, right):
                        line[j * stride[1] + b - padding[1]] = phase[j]
                else:
                    for j in range(left, right):
                        phase[j] = line[j * stride[1] + b - padding[1]]


@compiled
def _places(columns: int, taps: int, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[Array, Array]:
    """Return (pairs, counts): for each phase the positions of the window that read it, as (number, place there)."""
    found = np.empty((stride[0] * stride[1], taps, 2), np.int64)
    counts = np.zeros(stride[0] * stride[1], np.int64)
    for tap in range(taps):
        phase, first = _first(tap, columns, kernel, stride, dilation)
        found[phase, counts[phase], 0], found[phase, counts[phase], 1] = tap, first
        counts[phase] += 1
    return found, counts


@compiled
def _add_multiples(total: Array, w: Array, terms: Array, places: Array, count: int, start: int, sign: int) -> None:
    """Add w[tap] times the terms from element ``start + sign * place`` on, for ``count`` pairs (tap, place)."""
    size = total.size
    for k in range(0, count - 2, 3):
        f, g, h = w[places[k, 0]], w[places[k + 1, 0]], w[places[k + 2, 0]]
        at = start + sign * places[k, 1]
        a = terms[at:at + size]
        at = start + sign * places[k + 1, 1]
        b = terms[at:at + size]
        at = start + sign * places[k + 2, 1]
        c = terms[at:at + size]
        for i in range(size):
            total[i] += f * a[i] + g * b[i] + h * c[i]
    for k in range(count - count % 3, count):
        f, at = w[places[k, 0]], start + sign * places[k, 1]
        a = terms[at:at + size]
        for i in range(size):
            total[i] += f * a[i]


@compiled
def _spread(line: Array, dy: Array, columns: int) -> None:
    """Copy outputs [P, Q] into a line in which their rows are ``columns`` apart."""
    for p in range(dy.shape[0]):
        for q in range(dy.shape[1]):
            line[p * columns + q] = dy[p, q]


@PieceLoop
def _depthwise(y: Array, x: Array, w: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> None:
    rows, columns, span = _extents((y.shape[2], y.shape[3]), kernel, stride, dilation)
    found, counts = _places(columns, w.shape[1], kernel, stride, dilation)
    for plane in prange(y.shape[0] * y.shape[1]):
        n, c = plane // y.shape[1], plane % y.shape[1]
        phases = np.zeros((stride[0] * stride[1], rows * columns), x.dtype)
        _transfer(phases, x[n, c], rows, columns, stride, padding, False)
        line = np.zeros(span, x.dtype)
        for phase in range(phases.shape[0]):
            _add_multiples(line, w[c], phases[phase], found[phase], counts[phase], 0, 1)
        for p in range(y.shape[2]):
            for q in range(y.shape[3]):
                y[n, c, p, q] = line[p * columns + q]


@PieceLoop
def _depthwise_dgrad(dx: Array, dy: Array, w: Array, kernel: Pair, stride: Pair, padding: Pair,
                     dilation: Pair) -> None:
    rows, columns, span = _extents((dy.shape[2], dy.shape[3]), kernel, stride, dilation)
    found, counts = _places(columns, w.shape[1], kernel, stride, dilation)
    for plane in prange(dy.shape[0] * dy.shape[1]):
        n, c = plane // dy.shape[1], plane % dy.shape[1]
        phases = np.zeros((stride[0] * stride[1], rows * columns), dy.dtype)
        reach = rows * columns - span  # the farthest place that a position of the window reads first
        line = np.zeros(span + 2 * reach, dy.dtype)
        _spread(line[reach:], dy[n, c], columns)
        for phase in range(phases.shape[0]):
            _add_multiples(phases[phase], w[c], line, found[phase], counts[phase], reach, -1)
        dx[n, c] = 0  # where no window reaches
        _transfer(phases, dx[n, c], rows, columns, stride, padding, True)


@PieceLoop
def _depthwise_wgrad(sums: Array, dy: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair,
                     dilation: Pair) -> None:
    """Add the weight's gradient to sums [C, R S], in float64: over images in their order, and over each plane."""
    rows, columns, span = _extents((dy.shape[2], dy.shape[3]), kernel, stride, dilation)
    for c in prange(dy.shape[1]):
        for n in range(dy.shape[0]):
            phases = np.zeros((stride[0] * stride[1], rows * columns), x.dtype)
            _transfer(phases, x[n, c], rows, columns, stride, padding, False)
            line = np.zeros(span, x.dtype)
            _spread(line, dy[n, c], columns)
            for tap in range(sums.shape[1]):
                phase, first = _first(tap, columns, kernel, stride, dilation)
                sums[c, tap] += total_product(line, phases[phase, first:first + span])


def _by_planes(run: Callable[..., None], result: Array, operand: Array, w: Array, *options: Pair) -> None:
    """Run the kernel ``run(work, result, operand, w, ...)`` on pieces of [N, C, H, W] that are whole planes."""
    larger = max((result, operand), key=lambda a: a.size)
    weights = source(w).reshape(w.shape[0], -1)
    for planes in pieces(larger.shape, result, operand, whole=2):
        part, given = result[planes[:2]], source(operand[planes[:2]])
        values = room(part)
        run(max(part.size, given.size), values, given, weights[planes[1]], (w.shape[2], w.shape[3]), *options)
        settle(part, values)


def depthwise(y: Array, x: Array, w: Array, *, stride: Pair, padding: Pair, dilation: Pair) -> None:
    """y[n, c] = the cross-correlation of the plane x[n, c] with w[c, 0]."""
    _by_planes(_depthwise, y, x, w, stride, padding, dilation)


def depthwise_dgrad(dx: Array, dy: Array, w: Array, *, x_shape: Shape, stride: Pair, padding: Pair,
                    dilation: Pair) -> None:
    """dx = the gradient of ``depthwise`` with respect to x."""
    _by_planes(_depthwise_dgrad, dx, dy, w, stride, padding, dilation)


def depthwise_wgrad(dw: Array, dy: Array, x: Array, *, kernel: Pair, stride: Pair, padding: Pair,
                    dilation: Pair) -> None:
    """dw = the gradient of ``depthwise`` with respect to w."""
    sums = np.zeros((dw.shape[0], kernel[0] * kernel[1]))
    larger = max((x, dy), key=lambda a: a.size)
    for planes in pieces(larger.shape, x, dy, whole=2):
        given, values = source(dy[planes[:2]]), source(x[planes[:2]])
        window = kernel, stride, padding, dilation
        _depthwise_wgrad(max(given.size, values.size), sums[planes[1]], given, values, *window)
    dw[...] = sums.reshape(dw.shape).astype(np.float32 if dw.itemsize == 2 else dw.dtype)
