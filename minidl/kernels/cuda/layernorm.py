"""Layer normalisation over the last dimension, and its gradients.

A thread block holds one row in registers (up to 4,096 elements), so that mean and variance take two passes but one
read. The parameters' gradients are sums over rows, laid out as in ``sums``. ``dtype`` is that of the rows; statistics,
parameters and their gradients have the compute type (Tools.wide).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.attention import row_place
from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.column_groups import parameter_column_sums
from minidl.kernels.cuda.fast.element_groups import group_width
from minidl.kernels.cuda.fast.layernorm_groups import normalise_row_groups, row_groups_gradient, shape_of
from minidl.kernels.cuda.launch import Kernel, Launches, View, blocks_of, compute, integers
from minidl.kernels.cuda.rows import rows, shape_of_block
from minidl.kernels.cuda.shape import copy
from minidl.kernels.cuda.sums import COLUMNS, ITEMS, few_threads, grid, split, tiled, united_sums
from minidl.kernels.cuda.tools import Tools


def normalise_rows(tools: Tools, *, dtype: str, items: int, threads: int) -> Callable[..., None]:
    """Return a kernel: y = (x - mean) rstd gamma + beta, and each row's mean and rstd.
    items: elements of a row that a thread holds in registers; 0: none, a row is read three times. threads: of a block,
    which has one row. The kernel's arguments ``width`` and ``share`` are the length of a row and 1 / that length."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, block_sum, sqrt = row_place(tools), tools.tile_sum(1, threads), tools.scalar(dtype).sqrt
    (load_wide, store_wide), held = tools.wide(dtype), max(items, 1)

    def kernel(y: Any, x: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, eps: Any, share: Any, gamma_s: Any,
               beta_s: Any, width: Any, n1: Any, n2: Any, y0: Any, y1: Any, y2: Any, y_s: Any,
               x0: Any, x1: Any, x2: Any, x_s: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        values = cuda.local.array(held, number)
        r, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        x_at, y_at = place(r, n1, n2, x0, x1, x2), place(r, n1, n2, y0, y1, y2)
        level, square = number(0), number(0)
        if items > 0:
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    values[k] = load(x, x_at + i * x_s)
                    level += values[k]
        else:
            for i in range(thread, width, threads):
                level += load(x, x_at + i * x_s)
        level = block_sum(level, scratch) * share
        if items > 0:
            for k in range(held):
                if thread + k * threads < width:
                    values[k] -= level
                    square += values[k] * values[k]
        else:
            for i in range(thread, width, threads):
                deviation = load(x, x_at + i * x_s) - level
                square += deviation * deviation
        scale = number(1) / number(sqrt(block_sum(square, scratch) * share + eps))
        if thread == 0:
            store_wide(mean, r, level)
            store_wide(rstd, r, scale)
        if items > 0:
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    value = values[k] * scale * load_wide(gamma, i * gamma_s)
                    store(y, y_at + i * y_s, value + load_wide(beta, i * beta_s))
        else:
            for i in range(thread, width, threads):
                value = (load(x, x_at + i * x_s) - level) * scale * load_wide(gamma, i * gamma_s)
                store(y, y_at + i * y_s, value + load_wide(beta, i * beta_s))
    return kernel


def rows_gradient(tools: Tools, *, dtype: str, items: int, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = rstd (g - avg(g) - xhat avg(g xhat)), with g = dy gamma and xhat = (x - mean) rstd.
    avg: over a row. Parameters and arguments are as in ``normalise_rows``, but with items of 0 a row is read twice."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, block_sum, held = row_place(tools), tools.tile_sum(1, threads), max(items, 1)
    load_wide = tools.wide(dtype)[0]

    def kernel(dx: Any, dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, share: Any, gamma_s: Any,
               width: Any, n1: Any, n2: Any, dx0: Any, dx1: Any, dx2: Any, dx_s: Any,
               dy0: Any, dy1: Any, dy2: Any, dy_s: Any, x0: Any, x1: Any, x2: Any, x_s: Any,
               mean0: Any, mean1: Any, mean2: Any, mean_s: Any,
               rstd0: Any, rstd1: Any, rstd2: Any, rstd_s: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        hats, gradients = cuda.local.array(held, number), cuda.local.array(held, number)
        r, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        x_at, dy_at = place(r, n1, n2, x0, x1, x2), place(r, n1, n2, dy0, dy1, dy2)
        dx_at = place(r, n1, n2, dx0, dx1, dx2)
        centre = load_wide(mean, place(r, n1, n2, mean0, mean1, mean2))
        scale = load_wide(rstd, place(r, n1, n2, rstd0, rstd1, rstd2))
        level, slope = number(0), number(0)
        if items > 0:
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    hats[k] = (load(x, x_at + i * x_s) - centre) * scale
                    gradients[k] = load(dy, dy_at + i * dy_s) * load_wide(gamma, i * gamma_s)
                    level += gradients[k]
                    slope += gradients[k] * hats[k]
        else:
            for i in range(thread, width, threads):
                gradient = load(dy, dy_at + i * dy_s) * load_wide(gamma, i * gamma_s)
                level += gradient
                slope += gradient * ((load(x, x_at + i * x_s) - centre) * scale)
        level = block_sum(level, scratch) * share
        slope = block_sum(slope, scratch) * share
        if items > 0:
            for k in range(held):
                i = thread + k * threads
                if i < width:
                    store(dx, dx_at + i * dx_s, (gradients[k] - level - hats[k] * slope) * scale)
        else:
            for i in range(thread, width, threads):
                gradient = load(dy, dy_at + i * dy_s) * load_wide(gamma, i * gamma_s)
                hat = (load(x, x_at + i * x_s) - centre) * scale
                store(dx, dx_at + i * dx_s, (gradient - level - hat * slope) * scale)
    return kernel


def parameter_sums(tools: Tools, *, dtype: str, columns: int, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: for each column, the sums of dy xhat and of dy over a slab.
    A slab is a range of rows; xhat = (x - mean) rstd. columns: of a block. narrow: all indices are below 2^31."""
    cuda, (load, _), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    load_wide, store = tools.wide(dtype)
    (locate, advance), lanes = tools.walk(narrow), threads // columns
    tile_sum = tools.tile_sum(columns, threads)

    def kernel(slopes: Any, levels: Any, x: Any, dy: Any, mean: Any, rstd: Any, kept: Any, count: Any, length: Any,
               b1: Any, b2: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               x_k0: Any, x_k1: Any, x_k2: Any, x0: Any, x1: Any, x2: Any, x3: Any,
               dy_k0: Any, dy_k1: Any, dy_k2: Any, dy0: Any, dy1: Any, dy2: Any, dy3: Any,
               m_k0: Any, m_k1: Any, m_k2: Any, m0: Any, m1: Any, m2: Any, m3: Any,
               r_k0: Any, r_k1: Any, r_k2: Any, r0: Any, r1: Any, r2: Any, r3: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        hats, gradients = cuda.local.array(ITEMS, number), cuda.local.array(ITEMS, number)
        thread = cuda.threadIdx.x
        tiles = (kept + columns - 1) // columns
        slab = np.int64(cuda.blockIdx.x) // tiles
        b = np.int64(cuda.blockIdx.x) % tiles * columns + thread % columns
        slope, level = number(0), number(0)
        if b < kept:
            j, stop = slab * length + thread // columns, min(count, (slab + 1) * length)
            c0, c1, c2, c3 = locate(j, n1, n2, n3)
            while j < stop:
                for k in range(ITEMS):
                    hats[k], gradients[k] = number(0), number(0)
                    if j + k * lanes < stop:
                        deviation = (load(x, b * x_k2 + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3)
                                     - load_wide(mean, c0 * m0 + c1 * m1 + c2 * m2 + c3 * m3))
                        hats[k] = deviation * load_wide(rstd, c0 * r0 + c1 * r1 + c2 * r2 + c3 * r3)
                        gradients[k] = load(dy, b * dy_k2 + c0 * dy0 + c1 * dy1 + c2 * dy2 + c3 * dy3)
                        c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
                for k in range(ITEMS):
                    level += gradients[k]
                    slope += gradients[k] * hats[k]
                j += ITEMS * lanes
        level = tile_sum(level, scratch)
        slope = tile_sum(slope, scratch)
        if thread < columns and b < kept:
            store(slopes, slab * kept + b, slope)
            store(levels, slab * kept + b, level)
    return kernel


def _layer_norm(builder: Launches, y: View, mean: View, rstd: View, x: View, gamma: View, beta: View, *,
                eps: float) -> None:
    """Add launches: y = (x - mean) rstd gamma + beta for each row, with rstd = 1 / sqrt(var + eps)."""
    options = shape_of(y, x) if y.size and is_on("layernorm") else None
    if options is not None:
        number, count = np.dtype(compute(x.dtype)).type, x.size // x.shape[-1]
        builder.launch(normalise_row_groups, blocks_of(count, options["threads"] // options["lanes"]), y, x, mean, rstd,
                       gamma, beta, number(eps), number(1.0 / x.shape[-1]), *integers(
                           gamma.strides[0], beta.strides[0], x.shape[-1] // options["width"], count),
                       dtype=x.dtype.name, **options)
    elif y.size:
        operands, count, arguments = rows(builder, [y, x], [])
        number = np.dtype(compute(x.dtype)).type
        builder.launch(normalise_rows, count, *operands, mean, rstd, gamma, beta, number(eps),
                       number(1.0 / x.shape[-1]), *integers(gamma.strides[0], beta.strides[0]), *arguments,
                       dtype=x.dtype.name, **shape_of_block(x.shape[-1]))


def _layer_norm_grad(builder: Launches, dx: View, dy: View, x: View, gamma: View, mean: View, rstd: View) -> None:
    """Add launches: dx = rstd (g - avg(g) - xhat avg(g xhat)), avg over a row, g = dy gamma, xhat = (x - mean) rstd."""
    lie_so = bool(dx.size) and mean.contiguous and rstd.contiguous
    options = shape_of(dx, dy, x) if lie_so and is_on("layernorm") else None
    if options is not None:
        number, count = np.dtype(compute(x.dtype)).type, x.size // x.shape[-1]
        builder.launch(row_groups_gradient, blocks_of(count, options["threads"] // options["lanes"]), dx, dy, x, mean,
                       rstd, gamma, number(1.0 / x.shape[-1]), *integers(
                           gamma.strides[0], x.shape[-1] // options["width"], count),
                       dtype=x.dtype.name, **options)
    elif dx.size:
        operands, count, arguments = rows(builder, [dx, dy, x], [mean, rstd])
        share = np.dtype(compute(x.dtype)).type(1.0 / x.shape[-1])
        builder.launch(rows_gradient, count, *operands, gamma, share, *integers(gamma.strides[0]), *arguments,
                       dtype=x.dtype.name, **shape_of_block(x.shape[-1]))


def _layer_norm_grad_reduce(builder: Launches, dgamma: View, dbeta: View, dy: View, x: View, mean: View,
                            rstd: View) -> None:
    """Add launches: dbeta = sum(dy), dgamma = sum(dy (x - mean) rstd), over all rows."""
    width = group_width(x.shape[-1], dy, x) if is_on("layernorm") else 0
    grouped = width > 0 and all(a.contiguous for a in (dy, x, mean, rstd)) and x.size > 0
    operands = [x, dy, *(View(a.pointer, a.dtype, x.shape, (*a.strides, 0)) for a in (mean, rstd))]
    axes = tuple(range(len(x.shape) - 1))
    parts = split(x.shape, axes, *[a.strides for a in operands])
    if not parts.fits():
        for i, a in enumerate((x, dy, mean, rstd)):
            dense = builder.scratch(a.shape, a.dtype.name)
            copy(builder, dense, a)
            strides = dense.strides if i < 2 else (*dense.strides, 0)
            operands[i] = View(dense.pointer, dense.dtype, x.shape, strides)
        parts = split(x.shape, axes, *[a.strides for a in operands])
    count, length = x.size // max(1, x.shape[-1]), x.shape[-1]
    g = tiled(length // width, count, COLUMNS, reduces=True) if grouped else grid(parts)
    options = {**g.options, "dtype": x.dtype.name}

    def launch_into(slopes: View, levels: View) -> None:
        if grouped:
            builder.launch(parameter_column_sums, g.blocks, slopes, levels, dy, x, mean, rstd, *integers(
                length // width, count, g.length), width=width, **options)
        else:
            builder.launch(parameter_sums, g.blocks, slopes, levels, *operands, *integers(
                g.kept, g.count, g.length), *parts.arguments(g.threads // g.columns), **options)
    if g.slabs == 1:
        launch_into(dgamma, dbeta)
        return
    sums = [builder.scratch((g.slabs, length), compute(x.dtype)) for _ in range(2)]
    launch_into(*sums)
    for result, parts_of_it in zip((dgamma, dbeta), sums, strict=True):
        builder.launch(united_sums, length, result, parts_of_it, np.dtype(compute(x.dtype)).type(1),
                       *integers(length, g.slabs), dtype=result.dtype.name, threads=few_threads(g.slabs))


KERNELS: dict[str, Kernel] = {
    "layer_norm": Kernel(_layer_norm), "layer_norm_grad": Kernel(_layer_norm_grad),
    "layer_norm_grad_reduce": Kernel(_layer_norm_grad_reduce),
}
