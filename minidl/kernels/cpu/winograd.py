"""Convolutions of 3 x 3 windows at stride 1, with 16 products where the plain sum has 36 (Winograd).

A tile of 2 x 2 outputs is computed from a patch of 4 x 4 inputs; patches overlap:

  U = G w G^T,  V = B^T x B         16 numbers for each window and for each patch
  M = U V, summed over C            16 matrix products [K, C] [C, tiles]
  y = A^T M A

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), section 4.1, F(2x2, 3x3). Its rounding errors
are less than twice those of the plain sum. Larger tiles need fewer products, but have three to ten times the errors.

The input's gradient is a convolution of dy with the windows rotated by 180 degrees. A task has a group of tiles and a
block of K; it goes through C in chunks, and makes U and V for each, so it needs only a worker's buffer. Cuts and
workers are those of im2col.py. An infinity or a NaN spreads to the whole tile. Arrays are flat, with strides.
"""

from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from minidl.kernels import scalar
from minidl.kernels.cpu.columns import PLACES, locate, pack, padded
from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.conv_cuts import GROUP
from minidl.kernels.cpu.elements import read, write
from minidl.kernels.cpu.product import multiply
from minidl.kernels.cpu.vectors import Vectors, intrinsic, lanes, turn_run

parallel = partial(compiled, parallel=True)

_B = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
_G = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
_A = ((1, 1, 1, 0), (0, 1, -1, -1))


def _weighted_sum(v: Vectors, factors: tuple[float, ...], terms: list[Any]) -> Any:
    """Emit code for the sum of factors[i] * terms[i], vectors; return the resulting vector."""
    total = None
    for factor, term in zip(factors, terms, strict=True):
        if not factor:
            continue
        if abs(factor) != 1:
            term = v.builder.fmul(term, ir.Constant(v.vector, [ir.Constant(v.scalar, abs(factor))] * v.count))
        if total is None:
            total = term if factor > 0 else v.builder.fneg(term)
        else:
            total = v.builder.fadd(total, term) if factor > 0 else v.builder.fsub(total, term)
    return total


def _transform(matrix: tuple[tuple[float, ...], ...], *, interleaved: bool = False) -> Any:
    """Return compiled code for matrix X matrix^T, where each element of X is a vector, ``step`` from the next one.

    An ``interleaved`` result has the two rows of each pair combined, and pairs follow each other.
    """
    size = len(matrix[0])

    @intrinsic
    def transform(typing_context: Any, target: Any, at: Any, step: Any, source: Any, base: Any,
                  source_step: Any) -> Any:
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target_, at_, step_, source_, base_, source_step_ = args
            v = Vectors(context, builder, target.dtype)
            origin, there = v.at(source, source_, base_), v.at(target, target_, at_)

            def place(start: Any, by: Any, number: int) -> Any:
                return v.step(start, builder.mul(by, ir.Constant(by.type, number)))
            x = [[v.load(place(origin, source_step_, i * size + j)) for j in range(size)] for i in range(size)]
            half = [[_weighted_sum(v, row, [x[i][j] for i in range(size)]) for j in range(size)] for row in matrix]
            result = [_weighted_sum(v, row, line) for line in half for row in matrix]
            if interleaved:
                for i in range(2):
                    for part in range(2):
                        mask = [part * v.count // 2 + j // 2 + j % 2 * v.count for j in range(v.count)]
                        pairs = builder.shuffle_vector(result[2 * i], result[2 * i + 1], ir.Constant(
                            ir.VectorType(ir.IntType(32), v.count), mask))
                        v.store(pairs, v.step(place(there, step_, i), part * v.count))
            else:
                for i, value in enumerate(result):
                    v.store(value, place(there, step_, i))
            return context.get_dummy_value()
        return types.void(target, index, index, source, index, index), generate
    return transform


# target[at + i step ...], one vector each, from source[base + i source_step ...]
_to_u, _to_v, _to_y = _transform(_G), _transform(_B), _transform(_A, interleaved=True)


@compiled
def _transform_weights(buffer: Any, at: int, raw: int, w: Any, w_steps: Any, turned: bool, outputs: Any, inputs: Any,
                       inside: Any) -> None:
    """Write U [16, C, K] to the buffer from element ``at`` on, for the ranges ``outputs`` of K and ``inputs`` of C.
    raw: the position in the buffer of scratch space for 16 vectors. w_steps: elements of w from one window to the next,
    along K and along C. turned: windows are rotated by 180 degrees. inside: ``2 * lanes`` integers: 0, then -1."""
    lane_count = lanes(buffer)
    count = outputs[1] - outputs[0]
    width = padded(count, lane_count)
    start, step = raw + 8 * lane_count if turned else raw, -lane_count if turned else lane_count
    for c in range(inputs[1] - inputs[0]):
        for k in range(0, count, lane_count):
            origin = (outputs[0] + k) * w_steps[0] + (inputs[0] + c) * w_steps[1]
            for tap in range(0, 9, lane_count):
                turn_run(buffer, raw + tap * lane_count, lane_count, 9 - tap, w, origin + tap, w_steps[0], count - k,
                         inside, lane_count - min(lane_count, 9 - tap))
            _to_u(buffer, at + c * width + k, (inputs[1] - inputs[0]) * width, buffer, start, step)


@compiled
def _transform_inputs(buffer: Any, at: int, size: int, raw: int, x: Any, x_strides: Any, extent: Any, channels: Any,
                      places: Any, first_image: int, count: int) -> None:
    """Transform the inputs of some channels and tiles, and write the result to ``buffer`` from element ``at`` on.
    The result is V [16, channels, tiles]: 16 matrices in panels, ``size`` elements apart. channels: the first one, and
    the one after the last. places: the tiles' pixels, by ``columns.locate``. raw: the element of ``buffer`` from which
    on the tiles are kept before they are transformed."""
    lane_count = lanes(buffer)
    panel, depth, pitch = 3 * lane_count, channels[1] - channels[0], padded(count, lane_count)
    for first in range(0, depth, GROUP):
        last = min(first + GROUP, depth)
        pack(buffer, raw, pitch, x, x_strides, extent, (4, 4), (channels[0] + first, channels[0] + last), places,
             first_image, count)
        for c in range(first, last):
            for i in range(0, count, lane_count):
                _to_v(buffer, at + (i // panel * depth + c) * panel + i % panel, size,
                      buffer, raw + (c - first) * 16 * pitch + i, pitch)


@compiled
def _store_results(y: Any, at: int, buffer: Any, start: int, count: int, bias: Any, relu: bool, onto: Any, origin: int,
                   step: int, kept: bool) -> None:
    """Write ``count`` results, buffer[start:], each plus a term, to y from element ``at`` on.
    The terms are y's own elements if ``kept``; else ``onto`` (from element ``origin`` on, ``step`` apart), if that is
    not empty; else the number ``bias``, with a ReLU if ``relu``."""
    if kept:
        for i in range(count):
            write(y, at + i, buffer[start + i] + read(y, at + i))
    elif onto.size:
        for i in range(count):
            write(y, at + i, buffer[start + i] + read(onto, origin + i * step))
    else:
        target, source = y[at:at + count], buffer[start:start + count]
        for i in range(count):
            write(target, i, scalar.relu(source[i] + bias) if relu else source[i] + bias)


@compiled
def _task(y: Any, x: Any, x_strides: Any, w: Any, w_steps: Any, turned: bool, b: Any, relu: bool, onto: Any,
          onto_strides: Any, kept: bool, buffer: Any, at: int, places: Any, inside: Any, x_shape: Any, y_shape: Any,
          padding: Any, groups: int, cuts: Any, task: int) -> None:
    _, c_count, height, width = x_shape
    n_count, k_count, p_count, q_count = y_shape
    lane_count = lanes(buffer)
    panel = 3 * lane_count
    down, across = (p_count + 1) // 2, (q_count + 1) // 2
    blocks = (k_count + cuts[2] - 1) // cuts[2]
    k = task % blocks * cuts[2]
    block = min(cuts[2], k_count - k)
    first = task // blocks * cuts[0]
    last = min(first + cuts[0], n_count * down * across)
    count, image = last - first, first // (down * across)
    ld = padded(count, lane_count)
    most = min(cuts[1], c_count)
    v_size = most * ((count + panel - 1) // panel * panel)
    m_at = at + 16 * max(lane_count, GROUP * ld)  # in front of it: patches, then a window, then a row of results
    v_at = m_at + 16 * block * ld
    u_at = v_at + 16 * v_size
    locate(places, (first, last), (down, across), (2, 2), padding, x_strides, lane_count)
    for c in range(0, c_count, cuts[1]):
        stop = min(c + cuts[1], c_count)
        depth = stop - c
        _transform_inputs(buffer, v_at, v_size, at, x, x_strides, (height, width), (c, stop), places, image, count)
        _transform_weights(buffer, u_at, at, w, w_steps, turned, (k, k + block), (c, stop), inside)
        across_u = padded(block, lane_count)
        for i in range(16):
            multiply(buffer, m_at + i * block * ld, ld, buffer, u_at + i * depth * across_u, 1, across_u,
                     buffer, v_at + i * v_size, block, count, depth, c > 0)
    for i in range(block):
        for j in range(0, count, lane_count):
            _to_y(buffer, at + 2 * j, 2 * ld, buffer, m_at + i * ld + j, block * ld)
        bias = b[k + i] if b.size else buffer.dtype.type(0)
        tile = first
        while tile < last:
            n, p, q = tile // (down * across), tile // across % down * 2, tile % across * 2
            run = min(last - tile, across - q // 2)
            for row in range(min(2, p_count - p)):
                _store_results(y, ((n * groups * k_count + k + i) * p_count + p + row) * q_count + q, buffer,
                               at + 2 * (row * ld + tile - first), min(2 * run, q_count - q), bias, relu, onto,
                               n * onto_strides[0] + (k + i) * onto_strides[1] + (p + row) * onto_strides[2]
                               + q * onto_strides[3], onto_strides[3], kept)
            tile += run


@parallel
def winograd(y: Any, x: Any, x_strides: Any, w: Any, w_steps: Any, turned: bool, b: Any, relu: bool, onto: Any,
             onto_strides: Any, kept: bool, buffer: Any, x_shape: Any, y_shape: Any, padding: Any, groups: int,
             cuts: Any, workers: int, tasks: int) -> None:
    """y = convolution of x and w, plus a bias b, or ``onto``, or (``kept``) the present y. Empty arrays are left out.

    relu: apply a ReLU; only with a bias or nothing added.
    x is (N, C, H, W), y contiguous (N, K, P, Q); ``w_steps``: elements to the next window of K and of C; ``turned``:
    windows are rotated by 180 degrees. groups: of channels, of which the shapes have one. cuts: tiles of a task, C of a
    chunk, K of a block.
    """
    share = buffer.size // workers
    for worker in numba.prange(workers):
        lane_count = lanes(buffer)
        places = np.empty((PLACES, cuts[0] + lane_count), np.int32)
        inside = np.zeros(2 * lane_count, np.int32)  # from lane_count - i on: i lanes inside, the others not
        inside[lane_count:] = -1
        for task in range(worker, groups * tasks, workers):
            c, k = task // tasks * x_shape[1], task // tasks * y_shape[1]
            _task(y[k * y_shape[2] * y_shape[3]:], x[c * x_strides[1]:], x_strides,
                  w[9 * c * y_shape[1]:], w_steps, turned, b[k:], relu, onto[k * onto_strides[1]:], onto_strides, kept,
                  buffer, worker * share, places, inside, x_shape, y_shape, padding, groups, cuts, task % tasks)
