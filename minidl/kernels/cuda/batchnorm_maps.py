"""Device functions of batch normalisation that write feature maps; see ``batchnorm_sums`` for their arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.batchnorm_sums import channel_tools
from minidl.kernels.cuda.sums import ITEMS
from minidl.kernels.cuda.tools import Tools


def normalise(tools: Tools, *, dtype: str, add: bool, relu: bool, columns: int, narrow: bool,
              threads: int) -> Callable[..., None]:
    """Return a kernel: y = (x - mean) rstd gamma + beta, plus a residual if ``add``, with a ReLU if ``relu``.
    columns: channels of a thread block. narrow: True if all indices are below 2^31."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    load_wide, (locate, advance), lanes = tools.wide(dtype)[0], tools.walk(narrow), threads // columns
    (rstd, normed), positive = channel_tools(tools, dtype), tools.scalar(dtype).relu

    def kernel(y: Any, x: Any, residual: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: Any,
               mean_s: Any, var_s: Any, gamma_s: Any, beta_s: Any, kept: Any, count: Any, length: Any,
               b1: Any, b2: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               y_k0: Any, y_k1: Any, y_k2: Any, y0: Any, y1: Any, y2: Any, y3: Any,
               x_k0: Any, x_k1: Any, x_k2: Any, x0: Any, x1: Any, x2: Any, x3: Any,
               r_k0: Any, r_k1: Any, r_k2: Any, r0: Any, r1: Any, r2: Any, r3: Any) -> None:
        x_values, r_values = cuda.local.array(ITEMS, number), cuda.local.array(ITEMS, number)
        places = cuda.local.array(ITEMS, np.int64)
        thread = cuda.threadIdx.x
        tiles = (kept + columns - 1) // columns
        slab = np.int64(cuda.blockIdx.x) // tiles
        b = np.int64(cuda.blockIdx.x) % tiles * columns + thread % columns
        if b < kept:
            centre, offset = load_wide(mean, b * mean_s), load_wide(beta, b * beta_s)
            factor = load_wide(gamma, b * gamma_s) * rstd(load_wide(var, b * var_s), eps)
            j, stop = slab * length + thread // columns, min(count, (slab + 1) * length)
            c0, c1, c2, c3 = locate(j, n1, n2, n3)
            while j < stop:
                for k in range(ITEMS):
                    if j + k * lanes < stop:
                        places[k] = b * y_k2 + c0 * y0 + c1 * y1 + c2 * y2 + c3 * y3
                        x_values[k] = load(x, b * x_k2 + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3)
                        if add:
                            r_values[k] = load(residual, b * r_k2 + c0 * r0 + c1 * r1 + c2 * r2 + c3 * r3)
                        c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
                for k in range(ITEMS):
                    if j + k * lanes < stop:
                        value = normed(x_values[k], centre, factor, offset)
                        if add:
                            value += r_values[k]
                        if relu:
                            value = positive(value)
                        store(y, places[k], value)
                j += ITEMS * lanes
    return kernel


def input_gradient(tools: Tools, *, dtype: str, relu: bool, columns: int, narrow: bool,
                   threads: int) -> Callable[..., None]:
    """Return a kernel: dx = gamma rstd (dy - (dbeta + (x - mean) rstd dgamma) share), dy masked by ReLU if ``relu``.
    Its argument ``share``: 1 / values of a channel, or 0 outside of training. columns, narrow: as in ``normalise``."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    load_wide, (locate, advance), lanes = tools.wide(dtype)[0], tools.walk(narrow), threads // columns
    (rstd, normed), relu_grad = channel_tools(tools, dtype), tools.scalar(dtype).relu_grad

    def kernel(dx: Any, dy: Any, x: Any, mean: Any, var: Any, gamma: Any, beta: Any, dgamma: Any, dbeta: Any,
               eps: Any, share: Any, mean_s: Any, var_s: Any, gamma_s: Any, beta_s: Any, dgamma_s: Any,
               dbeta_s: Any, kept: Any, count: Any, length: Any,
               b1: Any, b2: Any, n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               dx_k0: Any, dx_k1: Any, dx_k2: Any, dx0: Any, dx1: Any, dx2: Any, dx3: Any,
               dy_k0: Any, dy_k1: Any, dy_k2: Any, dy0: Any, dy1: Any, dy2: Any, dy3: Any,
               x_k0: Any, x_k1: Any, x_k2: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
        x_values, dy_values = cuda.local.array(ITEMS, number), cuda.local.array(ITEMS, number)
        places = cuda.local.array(ITEMS, np.int64)
        thread = cuda.threadIdx.x
        tiles = (kept + columns - 1) // columns
        slab = np.int64(cuda.blockIdx.x) // tiles
        b = np.int64(cuda.blockIdx.x) % tiles * columns + thread % columns
        if b < kept:
            centre, deviation = load_wide(mean, b * mean_s), rstd(load_wide(var, b * var_s), eps)
            factor, offset = load_wide(gamma, b * gamma_s) * deviation, number(0)
            if relu:
                offset = load_wide(beta, b * beta_s)
            slope = deviation * load_wide(dgamma, b * dgamma_s) * share
            level = load_wide(dbeta, b * dbeta_s) * share
            j, stop = slab * length + thread // columns, min(count, (slab + 1) * length)
            c0, c1, c2, c3 = locate(j, n1, n2, n3)
            while j < stop:
                for k in range(ITEMS):
                    if j + k * lanes < stop:
                        places[k] = b * dx_k2 + c0 * dx0 + c1 * dx1 + c2 * dx2 + c3 * dx3
                        dy_values[k] = load(dy, b * dy_k2 + c0 * dy0 + c1 * dy1 + c2 * dy2 + c3 * dy3)
                        x_values[k] = load(x, b * x_k2 + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3)
                        c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
                for k in range(ITEMS):
                    if j + k * lanes < stop:
                        gradient = dy_values[k]
                        if relu:
                            gradient = relu_grad(gradient, normed(x_values[k], centre, factor, offset))
                        store(dx, places[k], (gradient - normed(x_values[k], centre, slope, level)) * factor)
                j += ITEMS * lanes
    return kernel


def update_running(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: running = running (1 - momentum) + factor batch, for each channel's mean and variance.
    factor: ``momentum`` for the mean, ``unbiased`` = momentum count / (count - 1) for the variance."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)

    def kernel(running_mean: Any, running_var: Any, mean: Any, var: Any, momentum: Any, unbiased: Any, n: Any,
               rm_s: Any, rv_s: Any, mean_s: Any, var_s: Any) -> None:
        c = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if c < n:
            kept = number(1) - momentum
            store(running_mean, c * rm_s, kept * load(running_mean, c * rm_s) + momentum * load(mean, c * mean_s))
            store(running_var, c * rv_s, kept * load(running_var, c * rv_s) + unbiased * load(var, c * var_s))
    return kernel


def merge_statistics(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel that merges two parts' mean and variance, a thread per channel.
    Its argument ``share`` is the number of the second part's examples / that of both."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)

    def kernel(merged_mean: Any, merged_var: Any, mean: Any, var: Any, other_mean: Any, other_var: Any, share: Any,
               n: Any, mm_s: Any, mv_s: Any, m_s: Any, v_s: Any, om_s: Any, ov_s: Any) -> None:
        c = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if c < n:
            kept, here = number(1) - share, load(mean, c * m_s)
            delta = load(other_mean, c * om_s) - here
            both = kept * load(var, c * v_s) + share * load(other_var, c * ov_s)
            store(merged_mean, c * mm_s, here + share * delta)
            store(merged_var, c * mv_s, both + share * kept * delta * delta)
    return kernel
