"""Copies between layouts (contiguous, concat, ...). They move bytes of any dtype."""

import numpy as np
from numba import prange
from numpy.lib.stride_tricks import as_strided

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.compiled import PARALLEL_FROM, PieceLoop
from minidl.kernels.cpu.elementwise import add
from minidl.meta import Parts, Shape

TILE = 32  # rows and columns of a transposition that stay in the first-level cache


@PieceLoop
def _copy(to: Array, origin: Array, shape: Array, to_steps: Array, origin_steps: Array) -> None:
    """Copy ``origin`` to ``to``, flat arrays viewed in four dimensions; to_steps, origin_steps: strides in elements.

    By rows if the rows of both are contiguous, else by tiles over the last two dimensions, so that no cache line is
    fetched twice.
    """
    height, width = shape[2], shape[3]
    rows_lie = to_steps[3] == 1 and origin_steps[3] == 1
    columns = width if rows_lie else min(width, TILE)
    tall = (height + TILE - 1) // TILE
    for task in prange(shape[0] * shape[1] * tall):
        plane, top = task // tall, task % tall * TILE
        i, j = plane // shape[1], plane % shape[1]
        for left in range(0, width, columns):
            count = min(columns, width - left)
            for h in range(top, min(top + TILE, height)):
                a = i * to_steps[0] + j * to_steps[1] + h * to_steps[2] + left * to_steps[3]
                b = i * origin_steps[0] + j * origin_steps[1] + h * origin_steps[2] + left * origin_steps[3]
                if rows_lie:
                    target, values = to[a:a + count], origin[b:b + count]
                    for w in range(values.size):
                        target[w] = values[w]
                else:
                    for w in range(count):
                        to[a + w * to_steps[3]] = origin[b + w * origin_steps[3]]


def _merged(to: Array, origin: Array) -> tuple[Array, Array, Array]:
    """Return shape and both arrays' strides, in elements, after merging neighbouring dimensions where both allow it."""
    merged: list[tuple[int, int, int]] = []
    for n, a, b in zip(to.shape, to.strides, origin.strides, strict=True):
        if n == 1:
            continue
        if merged and merged[-1][1:] == (a * n, b * n):
            merged[-1] = (merged[-1][0] * n, a, b)
        else:
            merged.append((n, a, b))
    table = np.array([(1, 0, 0)] * (4 - len(merged)) + merged)
    return table[:, 0], table[:, 1] // to.itemsize, table[:, 2] // to.itemsize


def _span(a: Array) -> Array:
    """Return the memory from a strided array's first element to its last, as unsigned integers of the elements' size.
    """
    extent = 1 + sum((n - 1) * step for n, step in zip(a.shape, a.strides, strict=True)) // a.itemsize
    return as_strided(a.view(f"u{a.itemsize}"), (extent,), (a.itemsize,))


def copy(to: Array, origin: Array) -> None:
    """Copy ``origin`` to ``to``; both have one shape and dtype, and no memory in common."""
    if to.size >= PARALLEL_FROM:
        shape, to_steps, origin_steps = map(np.ascontiguousarray, _merged(to, origin))
        if shape.size == 4:
            _copy(to.size, _span(to), _span(origin), shape, to_steps, origin_steps)
            return
    np.copyto(to, origin)


def contiguous(y: Array, x: Array) -> None:
    """y = a contiguous copy of x."""
    copy(y, x)


def concat(y: Array, *xs: Array, axis: int) -> None:
    """y = the arrays ``xs`` concatenated along ``axis``."""
    start = 0
    for x in xs:
        stop = start + x.shape[axis]
        copy(y[(slice(None),) * axis + (slice(start, stop),)], x)
        start = stop


def index_grad(dx: Array, dy: Array, onto: Array | None = None, *, shape: Shape, parts: Parts) -> None:
    """dx = dy at the selected part and zeros elsewhere; with ``onto``, dx = onto plus dy at that part.
    parts: an index for each dimension: an integer, (start, stop, step), or () for all of it; None adds a dimension."""
    if onto is None:
        dx.fill(0)
    elif dx.ctypes.data != onto.ctypes.data:
        copy(dx, onto)
    key = tuple(slice(*(part or (None,))) if isinstance(part, tuple) else part for part in parts)
    target = dx[(*key, ...)]
    if target.size and onto is None:
        copy(target, dy)
    elif target.size:
        add(target, target, dy)


def narrow_grad(dx: Array, dy: Array, *, shape: Shape, axis: int, start: int) -> None:
    """dx = dy at positions ``start`` and following along ``axis``, as many as dy has; zeros elsewhere."""
    lead, stop = (slice(None),) * axis, start + dy.shape[axis]
    dx[(*lead, slice(0, start))] = 0
    copy(dx[(*lead, slice(start, stop))], dy)
    dx[(*lead, slice(stop, None))] = 0
