"""Device functions of batch normalisation that sum over channels; ``batchnorm`` combines them.

``dtype`` is that of the feature maps; values per channel have the dtype of computation (Tools.wide).

A thread block is a tile of channels by lanes: threads that add up a channel's elements together (see ``sums``). There
are ``kept`` channels with ``count`` values each; a block sums ``length`` of them. A thread walks over images and
pixels: extents n1 .. n3, the coordinates t0 .. t3 of a step of all lanes; then for each feature map strides k0 .. k2 of
the kept dimensions (a channel's is k2) and of the walk.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.sums import ITEMS
from minidl.kernels.cuda.tools import Tools


def channel_tools(tools: Tools, dtype: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return rstd(var, eps) = 1 / sqrt(var + eps) and normed(x, centre, factor, offset) = (x - centre) factor + offset.
    """
    number, sqrt = tools.number(dtype), tools.scalar(dtype).sqrt

    def rstd(var: Any, eps: Any) -> Any:
        return number(1) / number(sqrt(var + eps))

    def normed(x: Any, centre: Any, factor: Any, offset: Any) -> Any:
        return (x - centre) * factor + offset
    return tools.device(rstd), tools.device(normed)


def unite_tool(tools: Tools, dtype: str, columns: int, threads: int) -> Callable[..., Any]:
    """Return ``unite(count, mean, square, counts, means, squares)``, which unites the statistics of a column's threads.
    counts, means, squares: shared arrays of ``threads`` numbers."""
    cuda, number = tools.cuda, tools.number(dtype)

    def unite(count: Any, mean: Any, square: Any, counts: Any, means: Any, squares: Any) -> Any:
        thread = cuda.threadIdx.x
        counts[thread], means[thread], squares[thread] = count, mean, square
        cuda.syncthreads()
        half = threads // 2
        while half >= columns:
            if thread < half:
                more = counts[thread + half]
                total = counts[thread] + more
                if total > number(0):
                    gap, share = means[thread + half] - means[thread], more / total
                    squares[thread] += squares[thread + half] + gap * gap * (counts[thread] * share)
                    means[thread] += gap * share
                    counts[thread] = total
            cuda.syncthreads()
            half //= 2
        return counts[thread], means[thread], squares[thread]
    return tools.device(unite)


def stats(tools: Tools, *, dtype: str, columns: int, narrow: bool, direct: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: each channel's mean and variance if ``direct``, else mean and squared deviations of each slab.
    A slab is a range of a channel's elements; ``united_stats`` combines slabs. columns: channels of a thread block.
    narrow: True if all indices are below 2^31."""
    cuda, (load, _), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    store = tools.wide(dtype)[1]
    (locate, advance), lanes = tools.walk(narrow), threads // columns
    unite = unite_tool(tools, dtype, columns, threads)

    def kernel(mean: Any, var: Any, x: Any, kept: Any, count: Any, length: Any, b1: Any, b2: Any,
               n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               k0: Any, k1: Any, k2: Any, s0: Any, s1: Any, s2: Any, s3: Any) -> None:
        counts = cuda.shared.array(threads, number)
        means = cuda.shared.array(threads, number)
        squares = cuda.shared.array(threads, number)
        values = cuda.local.array(ITEMS, number)
        thread = cuda.threadIdx.x
        tiles = (kept + columns - 1) // columns
        slab = np.int64(cuda.blockIdx.x) // tiles
        b = np.int64(cuda.blockIdx.x) % tiles * columns + thread % columns
        seen, level, square, origin = number(0), number(0), number(0), number(0)
        if b < kept:
            j, stop = slab * length + thread // columns, min(count, (slab + 1) * length)
            c0, c1, c2, c3 = locate(j, n1, n2, n3)
            if j < stop:
                origin = load(x, b * k2 + c0 * s0 + c1 * s1 + c2 * s2 + c3 * s3)
            while j < stop:
                for k in range(ITEMS):
                    values[k] = origin
                    if j + k * lanes < stop:
                        values[k] = load(x, b * k2 + c0 * s0 + c1 * s1 + c2 * s2 + c3 * s3)
                        c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
                        seen += number(1)
                for k in range(ITEMS):
                    distance = values[k] - origin
                    level += distance
                    square += distance * distance
                j += ITEMS * lanes
            if seen > number(0):
                level /= seen
                square -= level * level * seen
        seen, level, square = unite(seen, origin + level, square, counts, means, squares)
        if thread < columns and b < kept:
            store(mean, slab * kept + b, level)
            store(var, slab * kept + b, square / seen if direct else square)
    return kernel


def united_stats(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: a channel's mean and variance from those of its slabs, ranges of ``length`` values each."""
    cuda, (_, store), number = tools.cuda, tools.wide(dtype), tools.number(dtype)
    unite = unite_tool(tools, dtype, 1, threads)

    def kernel(mean: Any, var: Any, levels: Any, deviations: Any, kept: Any, count: Any, length: Any,
               slabs: Any) -> None:
        counts = cuda.shared.array(threads, number)
        means = cuda.shared.array(threads, number)
        squares = cuda.shared.array(threads, number)
        b, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        seen, level, square = number(0), number(0), number(0)
        for slab in range(thread, slabs, threads):
            more = number(min(length, count - slab * length))
            gap = levels[slab * kept + b] - level
            share = more / (seen + more)
            square += deviations[slab * kept + b] + gap * gap * (seen * share)
            level += gap * share
            seen += more
        seen, level, square = unite(seen, level, square, counts, means, squares)
        if thread == 0:
            store(mean, b, level)
            store(var, b, square / seen)
    return kernel


def gradient_sums(tools: Tools, *, dtype: str, relu: bool, columns: int, narrow: bool, direct: bool,
                  threads: int) -> Callable[..., None]:
    """Return a kernel: the sums of dy (x - mean) (times rstd if ``direct``) and of dy over each slab of a channel.
    relu: dy counts as 0 where the ReLU's result was 0. columns, narrow: as in ``stats``."""
    cuda, (load, _), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    load_wide, store = tools.wide(dtype)
    (locate, advance), lanes = tools.walk(narrow), threads // columns
    (rstd, normed), relu_grad = channel_tools(tools, dtype), tools.scalar(dtype).relu_grad
    tile_sum = tools.tile_sum(columns, threads)

    def kernel(slopes: Any, levels: Any, dy: Any, x: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: Any,
               mean_s: Any, var_s: Any, gamma_s: Any, beta_s: Any, kept: Any, count: Any, length: Any,
               b1: Any, b2: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               x_k0: Any, x_k1: Any, x_k2: Any, x0: Any, x1: Any, x2: Any, x3: Any,
               dy_k0: Any, dy_k1: Any, dy_k2: Any, dy0: Any, dy1: Any, dy2: Any, dy3: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        x_values, dy_values = cuda.local.array(ITEMS, number), cuda.local.array(ITEMS, number)
        thread = cuda.threadIdx.x
        tiles = (kept + columns - 1) // columns
        slab = np.int64(cuda.blockIdx.x) // tiles
        b = np.int64(cuda.blockIdx.x) % tiles * columns + thread % columns
        slope, level, deviation = number(0), number(0), number(0)
        if b < kept:
            centre, deviation = load_wide(mean, b * mean_s), rstd(load_wide(var, b * var_s), eps)
            factor, offset = number(0), number(0)
            if relu:
                factor, offset = load_wide(gamma, b * gamma_s) * deviation, load_wide(beta, b * beta_s)
            j, stop = slab * length + thread // columns, min(count, (slab + 1) * length)
            c0, c1, c2, c3 = locate(j, n1, n2, n3)
            while j < stop:
                for k in range(ITEMS):
                    x_values[k], dy_values[k] = centre, number(0)
                    if j + k * lanes < stop:
                        x_values[k] = load(x, b * x_k2 + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3)
                        dy_values[k] = load(dy, b * dy_k2 + c0 * dy0 + c1 * dy1 + c2 * dy2 + c3 * dy3)
                        c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
                for k in range(ITEMS):
                    gradient = dy_values[k]
                    if relu:
                        gradient = relu_grad(gradient, normed(x_values[k], centre, factor, offset))
                    level += gradient
                    slope += gradient * (x_values[k] - centre)
                j += ITEMS * lanes
        level = tile_sum(level, scratch)
        slope = tile_sum(slope, scratch)
        if thread < columns and b < kept:
            store(slopes, slab * kept + b, slope * deviation if direct else slope)
            store(levels, slab * kept + b, level)
    return kernel


def united_gradients(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: dgamma = rstd times the sum of the slabs' slopes, dbeta = the sum of their levels.
    One thread block does this for a channel."""
    cuda, (load, store), number = tools.cuda, tools.wide(dtype), tools.number(dtype)
    tile_sum, (rstd, _) = tools.tile_sum(1, threads), channel_tools(tools, dtype)

    def kernel(dgamma: Any, dbeta: Any, slopes: Any, levels: Any, var: Any, eps: Any, var_s: Any, kept: Any,
               slabs: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        b, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        slope, level = number(0), number(0)
        for slab in range(thread, slabs, threads):
            slope += slopes[slab * kept + b]
            level += levels[slab * kept + b]
        slope = tile_sum(slope, scratch)
        level = tile_sum(level, scratch)
        if thread == 0:
            store(dgamma, b, slope * rstd(load(var, b * var_s), eps))
            store(dbeta, b, level)
    return kernel


