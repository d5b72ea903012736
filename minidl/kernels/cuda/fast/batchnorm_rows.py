"""Batch normalisation of channels-last maps with dense rows: 16 bytes per load, one address addition per row.

It does the work of ``batchnorm_maps`` and ``batchnorm_sums`` for maps that are rows of ``groups`` groups of channels,
each of 16 bytes. A thread block is a tile of groups by lanes (threads that share a group); a thread stays in its group,
keeps its channels' constants in registers, and walks down the rows of a slab (a range of rows), two at a time. Formulas
and their order are the same; elementwise results have the same bits, sums are added in another order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.batchnorm_sums import channel_tools, unite_tool
from minidl.kernels.cuda.tools import Tools

ROWS = 2  # rows that a thread reads before it uses them


def _tile(tools: Tools, columns: int, threads: int) -> Callable[..., Any]:
    """Return ``tile(groups, length)`` -> this thread's slab, group, first row, first place, step between places.
    columns: groups of a thread block."""
    cuda, index, lanes = tools.cuda, tools.integer, threads // columns

    def tile(groups: Any, length: Any) -> Any:
        thread, block = cuda.threadIdx.x, index(cuda.blockIdx.x)
        tiles = index((groups + columns - 1) // columns)
        slab = index(block // tiles)
        group = np.int64(index(block - slab * tiles)) * columns + thread % columns
        row = np.int64(slab) * length + thread // columns
        return np.int64(slab), group, row, row * groups + group, lanes * groups
    return tools.device(tile)


def normalise_channels(tools: Tools, *, dtype: str, width: int, add: bool, relu: bool, columns: int,
                       threads: int) -> Callable[..., None]:
    """Return a kernel: y = (x - mean) rstd gamma + beta, plus a residual if ``add``, with a ReLU if ``relu``.
    width: channels of a group of 16 bytes; columns: groups of a thread block."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    load_wide, tile, lanes = tools.wide(dtype)[0], _tile(tools, columns, threads), threads // columns
    (rstd, normed), positive = channel_tools(tools, dtype), tools.scalar(dtype).relu

    held = ROWS * width

    def kernel(y: Any, x: Any, residual: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: Any, mean_s: Any,
               var_s: Any, gamma_s: Any, beta_s: Any, groups: Any, count: Any, length: Any) -> None:
        centre, factor = cuda.local.array(width, number), cuda.local.array(width, number)
        offset = cuda.local.array(width, number)
        x_values, r_values = cuda.local.array(held, number), cuda.local.array(held, number)
        slab, group, row, place, step = tile(groups, length)
        if group < groups:
            for v in range(width):
                c = group * width + v
                centre[v], offset[v] = load_wide(mean, c * mean_s), load_wide(beta, c * beta_s)
                factor[v] = load_wide(gamma, c * gamma_s) * rstd(load_wide(var, c * var_s), eps)
            stop = min(count, (slab + 1) * length)
            while row < stop:
                for k in range(ROWS):
                    if row + k * lanes < stop:
                        load(x, place + k * step, x_values, k * width)
                        if add:
                            load(residual, place + k * step, r_values, k * width)
                for k in range(ROWS):
                    if row + k * lanes < stop:
                        for v in range(width):
                            value = normed(x_values[k * width + v], centre[v], factor[v], offset[v])
                            if add:
                                value += r_values[k * width + v]
                            if relu:
                                value = positive(value)
                            x_values[k * width + v] = value
                        store(y, place + k * step, x_values, k * width)
                row += ROWS * lanes
                place += ROWS * step
    return kernel


def channels_gradient(tools: Tools, *, dtype: str, width: int, relu: bool, columns: int,
                      threads: int) -> Callable[..., None]:
    """Return a kernel: dx = gamma rstd (dy - (dbeta + (x - mean) rstd dgamma) share), dy masked by ReLU if ``relu``.
    Argument ``share``: 1 / values of a channel, 0 outside of training. width, columns: as in ``normalise_channels``."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    load_wide, tile, lanes = tools.wide(dtype)[0], _tile(tools, columns, threads), threads // columns
    (rstd, normed), relu_grad = channel_tools(tools, dtype), tools.scalar(dtype).relu_grad

    held = ROWS * width

    def kernel(dx: Any, dy: Any, x: Any, mean: Any, var: Any, gamma: Any, beta: Any, dgamma: Any, dbeta: Any,
               eps: Any, share: Any, mean_s: Any, var_s: Any, gamma_s: Any, beta_s: Any, dgamma_s: Any,
               dbeta_s: Any, groups: Any, count: Any, length: Any) -> None:
        centre, factor = cuda.local.array(width, number), cuda.local.array(width, number)
        offset, slope = cuda.local.array(width, number), cuda.local.array(width, number)
        level = cuda.local.array(width, number)
        x_values, dy_values = cuda.local.array(held, number), cuda.local.array(held, number)
        slab, group, row, place, step = tile(groups, length)
        if group < groups:
            for v in range(width):
                c = group * width + v
                centre[v], deviation = load_wide(mean, c * mean_s), rstd(load_wide(var, c * var_s), eps)
                factor[v] = load_wide(gamma, c * gamma_s) * deviation
                if relu:
                    offset[v] = load_wide(beta, c * beta_s)
                slope[v] = deviation * load_wide(dgamma, c * dgamma_s) * share
                level[v] = load_wide(dbeta, c * dbeta_s) * share
            stop = min(count, (slab + 1) * length)
            while row < stop:
                for k in range(ROWS):
                    if row + k * lanes < stop:
                        load(dy, place + k * step, dy_values, k * width)
                        load(x, place + k * step, x_values, k * width)
                for k in range(ROWS):
                    if row + k * lanes < stop:
                        for v in range(width):
                            value, gradient = x_values[k * width + v], dy_values[k * width + v]
                            if relu:
                                gradient = relu_grad(gradient, normed(value, centre[v], factor[v], offset[v]))
                            dy_values[k * width + v] = (gradient - normed(value, centre[v], slope[v],
                                                                          level[v])) * factor[v]
                        store(dx, place + k * step, dy_values, k * width)
                row += ROWS * lanes
                place += ROWS * step
    return kernel


def channel_statistics(tools: Tools, *, dtype: str, width: int, direct: bool, columns: int,
                       threads: int) -> Callable[..., None]:
    """Return a kernel: each channel's mean and variance if ``direct``, else mean and squared deviations of each slab.
    A slab is a range of rows. width, columns: as in ``normalise_channels``."""
    cuda, load, number = tools.cuda, tools.group(dtype, width)[0], tools.number(dtype)
    store, tile, lanes = tools.wide(dtype)[1], _tile(tools, columns, threads), threads // columns
    unite = unite_tool(tools, dtype, columns, threads)

    held = ROWS * width

    def kernel(mean: Any, var: Any, x: Any, groups: Any, count: Any, length: Any) -> None:
        counts = cuda.shared.array(threads, number)
        means = cuda.shared.array(threads, number)
        squares = cuda.shared.array(threads, number)
        origin, level = cuda.local.array(width, number), cuda.local.array(width, number)
        square, values = cuda.local.array(width, number), cuda.local.array(held, number)
        slab, group, row, place, step = tile(groups, length)
        seen = number(0)
        for v in range(width):
            origin[v], level[v], square[v] = number(0), number(0), number(0)
        if group < groups:
            stop = min(count, (slab + 1) * length)
            if row < stop:
                load(x, place, origin, 0)
            while row < stop:
                for k in range(ROWS):
                    for v in range(width):
                        values[k * width + v] = origin[v]
                    if row + k * lanes < stop:
                        load(x, place + k * step, values, k * width)
                        seen += number(1)
                for k in range(ROWS):
                    for v in range(width):
                        distance = values[k * width + v] - origin[v]
                        level[v] += distance
                        square[v] += distance * distance
                row += ROWS * lanes
                place += ROWS * step
        for v in range(width):
            if seen > number(0):
                level[v] /= seen
                square[v] -= level[v] * level[v] * seen
            total, centre, deviations = unite(seen, origin[v] + level[v], square[v], counts, means, squares)
            if cuda.threadIdx.x < columns and group < groups:
                at = (slab * groups + group) * width + v
                store(mean, at, centre)
                store(var, at, deviations / total if direct else deviations)
            cuda.syncthreads()  # before the next channel's values overwrite these
    return kernel


def channel_gradient_sums(tools: Tools, *, dtype: str, width: int, relu: bool, direct: bool, columns: int,
                          threads: int) -> Callable[..., None]:
    """Return a kernel: the sums of dy (x - mean) (times rstd if ``direct``) and of dy over each slab, a range of rows.
    relu: dy counts as 0 where the ReLU's result was 0. width, columns: as in ``normalise_channels``."""
    cuda, load, number = tools.cuda, tools.group(dtype, width)[0], tools.number(dtype)
    (load_wide, store), tile = tools.wide(dtype), _tile(tools, columns, threads)
    (rstd, normed), relu_grad = channel_tools(tools, dtype), tools.scalar(dtype).relu_grad
    tile_sum, lanes = tools.tile_sum(columns, threads), threads // columns

    held = ROWS * width

    def kernel(slopes: Any, levels: Any, dy: Any, x: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: Any,
               mean_s: Any, var_s: Any, gamma_s: Any, beta_s: Any, groups: Any, count: Any, length: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        centre, deviation = cuda.local.array(width, number), cuda.local.array(width, number)
        factor, offset = cuda.local.array(width, number), cuda.local.array(width, number)
        slope, level = cuda.local.array(width, number), cuda.local.array(width, number)
        x_values, dy_values = cuda.local.array(held, number), cuda.local.array(held, number)
        slab, group, row, place, step = tile(groups, length)
        for v in range(width):
            slope[v], level[v], deviation[v] = number(0), number(0), number(0)
        if group < groups:
            for v in range(width):
                c = group * width + v
                centre[v], deviation[v] = load_wide(mean, c * mean_s), rstd(load_wide(var, c * var_s), eps)
                if relu:
                    factor[v] = load_wide(gamma, c * gamma_s) * deviation[v]
                    offset[v] = load_wide(beta, c * beta_s)
            stop = min(count, (slab + 1) * length)
            while row < stop:
                for k in range(ROWS):
                    for v in range(width):
                        x_values[k * width + v], dy_values[k * width + v] = centre[v], number(0)
                    if row + k * lanes < stop:
                        load(x, place + k * step, x_values, k * width)
                        load(dy, place + k * step, dy_values, k * width)
                for k in range(ROWS):
                    for v in range(width):
                        value, gradient = x_values[k * width + v], dy_values[k * width + v]
                        if relu:
                            gradient = relu_grad(gradient, normed(value, centre[v], factor[v], offset[v]))
                        level[v] += gradient
                        slope[v] += gradient * (value - centre[v])
                row += ROWS * lanes
                place += ROWS * step
        for v in range(width):
            total = tile_sum(level[v], scratch)
            tilt = tile_sum(slope[v], scratch)
            if cuda.threadIdx.x < columns and group < groups:
                at = (slab * groups + group) * width + v
                store(slopes, at, tilt * deviation[v] if direct else tilt)
                store(levels, at, total)
    return kernel
