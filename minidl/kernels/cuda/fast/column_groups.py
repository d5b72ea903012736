"""Sums down the rows of dense tables whose columns are whole groups of 16 bytes: bias gradients, means of a plane.

It does the work of ``sums``, with the same trees but other cuts. A thread block is a tile of groups by lanes (threads
that share a group); a thread stays in its group and walks down the rows of a slab (a range of rows), several at a time.
There may be several consecutive tables.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.tools import Tools

ROWS = 4  # rows that a thread reads before it adds them up


def column_sums(tools: Tools, *, dtype: str, result: str, width: int, columns: int, narrow: bool,
                threads: int) -> Callable[..., None]:
    """Return a kernel: y[slab, q, v] = scale * sum of x[q // groups, row, q % groups, v] over the slab's rows.
    width: the values of v, 16 bytes of them; columns: values of q of a block. narrow: all indices are below 2^31."""
    cuda, (load, _), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    tile_sum, lanes, held = tools.tile_sum(columns, threads), threads // columns, ROWS * width
    store, index = tools.memory(result)[1], tools.integer if narrow else np.int64

    def kernel(y: Any, x: Any, scale: Any, kept: Any, count: Any, length: Any, groups: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        total, values = cuda.local.array(width, number), cuda.local.array(held, number)
        thread, block = cuda.threadIdx.x, index(cuda.blockIdx.x)
        tiles = index((kept + columns - 1) // columns)
        slab = index(block // tiles)
        q = np.int64(index(block - slab * tiles)) * columns + thread % columns
        for v in range(width):
            total[v] = number(0)
        if q < kept:
            table = index(index(q) // index(groups))
            row, stop = np.int64(slab) * length + thread // columns, min(count, (np.int64(slab) + 1) * length)
            place = (np.int64(table) * count + row) * groups + np.int64(index(q) - table * index(groups))
            step = lanes * groups
            while row < stop:
                for k in range(ROWS):
                    for v in range(width):
                        values[k * width + v] = number(0)
                    if row + k * lanes < stop:
                        load(x, place + k * step, values, k * width)
                for k in range(ROWS):
                    for v in range(width):
                        total[v] += values[k * width + v]
                row += ROWS * lanes
                place += ROWS * step
        for v in range(width):
            united = tile_sum(total[v], scratch)
            if thread < columns and q < kept:
                store(y, (np.int64(slab) * kept + q) * width + v, united * scale)
    return kernel


def parameter_column_sums(tools: Tools, *, dtype: str, width: int, columns: int, narrow: bool,
                          threads: int) -> Callable[..., None]:
    """Return a kernel: sums of dy (x - mean) rstd and of dy over a slab's rows, for a layer norm's parameters.
    width: columns of a group of 16 bytes; columns: groups of a thread block. narrow: all indices are below 2^31."""
    cuda, load, number = tools.cuda, tools.group(dtype, width)[0], tools.number(dtype)
    (load_wide, store), tile_sum = tools.wide(dtype), tools.tile_sum(columns, threads)
    lanes, held, index = threads // columns, ROWS // 2 * width, tools.integer if narrow else np.int64

    def kernel(slopes: Any, levels: Any, dy: Any, x: Any, mean: Any, rstd: Any, groups: Any, count: Any,
               length: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        slope, level = cuda.local.array(width, number), cuda.local.array(width, number)
        x_values, dy_values = cuda.local.array(held, number), cuda.local.array(held, number)
        thread, block = cuda.threadIdx.x, index(cuda.blockIdx.x)
        tiles = index((groups + columns - 1) // columns)
        slab = index(block // tiles)
        group = np.int64(index(block - slab * tiles)) * columns + thread % columns
        for v in range(width):
            slope[v], level[v] = number(0), number(0)
        if group < groups:
            row, stop = np.int64(slab) * length + thread // columns, min(count, (np.int64(slab) + 1) * length)
            while row < stop:
                for k in range(ROWS // 2):
                    for v in range(width):
                        x_values[k * width + v], dy_values[k * width + v] = number(0), number(0)
                    if row + k * lanes < stop:
                        load(x, (row + k * lanes) * groups + group, x_values, k * width)
                        load(dy, (row + k * lanes) * groups + group, dy_values, k * width)
                for k in range(ROWS // 2):
                    centre, scale = number(0), number(0)
                    if row + k * lanes < stop:
                        centre, scale = load_wide(mean, row + k * lanes), load_wide(rstd, row + k * lanes)
                    for v in range(k * width, (k + 1) * width):
                        slope[v - k * width] += dy_values[v] * ((x_values[v] - centre) * scale)
                        level[v - k * width] += dy_values[v]
                row += ROWS // 2 * lanes
        for v in range(width):
            tilt = tile_sum(slope[v], scratch)
            total = tile_sum(level[v], scratch)
            if thread < columns and group < groups:
                at = (np.int64(slab) * groups + group) * width + v
                store(slopes, at, tilt)
                store(levels, at, total)
    return kernel
