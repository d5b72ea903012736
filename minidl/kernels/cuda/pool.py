"""Pooling of [N, C, H, W]: one thread per output element; gradients too: each element of dx gathers its terms of dy.

So no two threads add to one element, and every element is written once. Any layout works, by strides: threads follow
the output's. Channels-last is fast: neighbouring threads read a window's taps next to each other, and overlapping
windows meet in the cache. Channels-first reads with the stride of the window.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.elementwise import over_elements
from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.pool_groups import gradient_of_groups, in_words, width_of, windows_of_groups
from minidl.kernels.cuda.fast.pool_tiles import MOST_PARTS, gradient_of_tiles, held_width, tile_of
from minidl.kernels.cuda.fast.pool_windows import abreast, columns_of, windows_abreast
from minidl.kernels.cuda.launch import Kernel, Launches, View, blocks_of, compute, integers
from minidl.kernels.cuda.sums import sum_over
from minidl.kernels.cuda.tools import Tools
from minidl.meta import Shape

Pair = tuple[int, int]


def _coordinates(tools: Tools, channels_last: bool, narrow: bool) -> Callable[..., Any]:
    """Return ``where(i, C, P, Q)`` -> the position (n, c, p, q) of the i-th element in memory order."""
    locate, _ = tools.walk(narrow)
    if channels_last:
        def last(i: Any, channels: Any, height: Any, width: Any) -> Any:
            n, p, q, c = locate(i, height, width, channels)
            return n, c, p, q
        return tools.device(last)

    def first(i: Any, channels: Any, height: Any, width: Any) -> Any:
        return locate(i, channels, height, width)
    return tools.device(first)


def max_windows(tools: Tools, *, dtype: str, kernel: Pair, stride: Pair, padding: Pair, channels_last: bool,
                narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: each window's maximum and its position r * S + s, the first of equal ones; NaN is largest.
    channels_last, narrow: True if y is channels-last, and if its elements are fewer than 2^31."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    where, lowest, (r_n, s_n) = _coordinates(tools, channels_last, narrow), number(-np.inf), kernel
    (r_step, s_step), (r_pad, s_pad) = stride, padding

    def run(y: Any, index: Any, x: Any, count: Any, channels: Any, p_n: Any, q_n: Any, h_n: Any, w_n: Any,
            y0: Any, y1: Any, y2: Any, y3: Any, i0: Any, i1: Any, i2: Any, i3: Any,
            x0: Any, x1: Any, x2: Any, x3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, c, p, q = where(i, channels, p_n, q_n)
            top, left, at = p * r_step - r_pad, q * s_step - s_pad, n * x0 + c * x1
            best = lowest
            chosen = max(0, -top) * s_n + max(0, -left)  # the index for a window of -inf only
            for r in range(r_n):
                for s in range(s_n):
                    if 0 <= top + r < h_n and 0 <= left + s < w_n:
                        value = load(x, at + (top + r) * x2 + (left + s) * x3)
                        if not value <= best and best == best:  # larger, or the first NaN
                            best, chosen = value, r * s_n + s
            store(y, n * y0 + c * y1 + p * y2 + q * y3, best)
            index[n * i0 + c * i1 + p * i2 + q * i3] = np.uint8(chosen)
    return run


def gradient(tools: Tools, *, dtype: str, largest: bool, kernel: Pair, stride: Pair, padding: Pair,
             channels_last: bool, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = the sum of dy over windows with their maximum here, or of dy / (R S) if not ``largest``.

    The windows come in their order. channels_last, narrow: of dx, as in ``max_windows``."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    where, (r_n, s_n), mean = _coordinates(tools, channels_last, narrow), kernel, not largest
    (r_step, s_step), (r_pad, s_pad), size = stride, padding, number(kernel[0] * kernel[1])

    def run(dx: Any, dy: Any, index: Any, count: Any, channels: Any, h_n: Any, w_n: Any, p_n: Any, q_n: Any,
            dx0: Any, dx1: Any, dx2: Any, dx3: Any, dy0: Any, dy1: Any, dy2: Any, dy3: Any,
            i0: Any, i1: Any, i2: Any, i3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, c, h, w = where(i, channels, h_n, w_n)
            at, total = n * dy0 + c * dy1, number(0)
            # Windows p with p * step - pad <= h < p * step - pad + size.
            first_p, last_p = max(0, (h + r_pad - r_n + r_step) // r_step), min(p_n, (h + r_pad) // r_step + 1)
            first_q, last_q = max(0, (w + s_pad - s_n + s_step) // s_step), min(q_n, (w + s_pad) // s_step + 1)
            for p in range(first_p, last_p):
                for q in range(first_q, last_q):
                    tap = (h + r_pad - p * r_step) * s_n + (w + s_pad - q * s_step)
                    if mean or np.int64(index[n * i0 + c * i1 + p * i2 + q * i3]) == tap:
                        total += load(dy, at + p * dy2 + q * dy3)
            store(dx, n * dx0 + c * dx1 + h * dx2 + w * dx3, total if largest else total / size)
    return run


def mean_windows(tools: Tools, *, dtype: str, kernel: Pair, stride: Pair, padding: Pair, channels_last: bool,
                 narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: the mean of each window, padding counted as zeros; options as in ``max_windows``."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    where, (r_n, s_n) = _coordinates(tools, channels_last, narrow), kernel
    (r_step, s_step), (r_pad, s_pad), size = stride, padding, number(kernel[0] * kernel[1])

    def run(y: Any, x: Any, count: Any, channels: Any, p_n: Any, q_n: Any, h_n: Any, w_n: Any,
            y0: Any, y1: Any, y2: Any, y3: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, c, p, q = where(i, channels, p_n, q_n)
            top, left, at, total = p * r_step - r_pad, q * s_step - s_pad, n * x0 + c * x1, number(0)
            for h in range(max(0, top), min(h_n, top + r_n)):
                for w in range(max(0, left), min(w_n, left + s_n)):
                    total += load(x, at + h * x2 + w * x3)
            store(y, n * y0 + c * y1 + p * y2 + q * y3, total / size)
    return run


def mean_cells(tools: Tools, *, dtype: str, channels_last: bool, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: the mean of each cell (p, q) of a P x Q grid, rows floor(p H / P) to ceil((p + 1) H / P) - 1."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    where = _coordinates(tools, channels_last, narrow)

    def run(y: Any, x: Any, count: Any, channels: Any, p_n: Any, q_n: Any, h_n: Any, w_n: Any,
            y0: Any, y1: Any, y2: Any, y3: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, c, p, q = where(i, channels, p_n, q_n)
            top, bottom = p * h_n // p_n, ((p + 1) * h_n + p_n - 1) // p_n
            left, right = q * w_n // q_n, ((q + 1) * w_n + q_n - 1) // q_n
            at, total = n * x0 + c * x1, number(0)
            for h in range(top, bottom):
                for w in range(left, right):
                    total += load(x, at + h * x2 + w * x3)
            store(y, n * y0 + c * y1 + p * y2 + q * y3, total / number((bottom - top) * (right - left)))
    return run


def cells_gradient(tools: Tools, *, dtype: str, channels_last: bool, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = the sum of dy / area over the cells that contain this element; cells may overlap."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    where = _coordinates(tools, channels_last, narrow)

    def run(dx: Any, dy: Any, count: Any, channels: Any, h_n: Any, w_n: Any, p_n: Any, q_n: Any,
            dx0: Any, dx1: Any, dx2: Any, dx3: Any, dy0: Any, dy1: Any, dy2: Any, dy3: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, c, h, w = where(i, channels, h_n, w_n)
            at, total = n * dy0 + c * dy1, number(0)
            # Cell p holds h if p H / P < h + 1 and (p + 1) H / P > h.
            for p in range(h * p_n // h_n, ((h + 1) * p_n + h_n - 1) // h_n):
                tall = ((p + 1) * h_n + p_n - 1) // p_n - p * h_n // p_n
                for q in range(w * q_n // w_n, ((w + 1) * q_n + w_n - 1) // w_n):
                    wide = ((q + 1) * w_n + q_n - 1) // q_n - q * w_n // q_n
                    total += load(dy, at + p * dy2 + q * dy3) / number(tall * wide)
            store(dx, n * dx0 + c * dx1 + h * dx2 + w * dx3, total)
    return run


def _per_element(builder: Launches, make: Callable[..., Any], result: View, *others: View, dtype: str,
                 **options: Any) -> None:
    """Launch the kernel of ``make``, one thread per element of the result.
    The last operand gives the other plane's size."""
    if not result.size:
        return
    _, channels, height, width = result.shape
    strides = [step for a in (result, *others) for step in a.strides]
    # A channel stride of 1 is innermost, unless the plane has a single element.
    channels_last = result.strides[1] == 1 and height * width > 1
    builder.launch(make, blocks_of(result.size, launch.THREADS), result, *others, *integers(
        result.size, channels, height, width, *others[-1].shape[2:], *strides), dtype=dtype,
        channels_last=channels_last, narrow=result.size < 1 << 31, **options)


def _per_group(builder: Launches, make: Callable[..., Any], width: int, result: View, *others: View,
               **options: Any) -> None:
    """Launch ``make``'s kernel, one thread per group of ``width`` channels of the result."""
    _, channels, height, across = result.shape
    groups = result.size // width
    builder.launch(make, blocks_of(groups, launch.THREADS), result, *others, *integers(
        groups, channels // width, height, across, *others[-1].shape[2:]), dtype=result.dtype.name, width=width,
        narrow=groups < 1 << 31, **options)


def _windows(builder: Launches, width: int, y: View, index: View, x: View, *, largest: bool, **window: Any) -> None:
    """Launch max-pooling (``largest``) or mean pooling by groups of channels. Means leave ``index`` as it is."""
    (n, channels, rows, across), several = y.shape, abreast(width)
    fits = across >= several and len(columns_of(several, window["kernel"][1], window["stride"][1])) <= MOST_PARTS
    if fits and is_on("pool-windows"):
        threads_across = blocks_of(across, several)
        count = n * rows * threads_across * channels // width
        builder.launch(windows_abreast, blocks_of(count, launch.THREADS), y, index, x, *integers(
            count, channels // width, threads_across, *y.shape[2:], *x.shape[2:]), dtype=y.dtype.name, width=width,
            largest=largest, narrow=max(x.size, y.size) < 1 << 31, **window)
    else:
        _per_group(builder, windows_of_groups, width, y, index, x, largest=largest, **window)


def _gradient(builder: Launches, width: int, dx: View, dy: View, index: View, *, largest: bool, **window: Any) -> None:
    """Launch the gradient of max-pooling (``largest``) or mean pooling by groups of ``width`` channels."""
    n, channels, *plane = dx.shape
    held = held_width(width, **window) if is_on("pool-tiles") else 0
    if held:
        tiles = [blocks_of(size, tile_of(step)) for size, step in zip(plane, window["stride"], strict=True)]
        count = n * tiles[0] * tiles[1] * channels // held
        builder.launch(gradient_of_tiles, blocks_of(count, launch.THREADS), dx, dy, index, *integers(
            count, channels // held, *tiles, *plane, *dy.shape[2:]), dtype=dx.dtype.name, width=held, largest=largest,
            narrow=max(dx.size, dy.size) < 1 << 31, **window)
    else:
        _per_group(builder, gradient_of_groups, width, dx, dy, index, largest=largest, **window)


def _max_pool2d(builder: Launches, y: View, index: View, x: View, **window: Pair) -> None:
    width = width_of((y, x), index) if y.size and is_on("pool") else 0
    if width:
        _windows(builder, width, y, in_words(index), x, largest=True, **window)
        return
    _per_element(builder, max_windows, y, index, x, dtype=x.dtype.name, **window)


def _max_pool2d_grad(builder: Launches, dx: View, dy: View, index: View, *, x_shape: Shape, **window: Pair) -> None:
    width = width_of((dx, dy), index) if dx.size and is_on("pool") else 0
    if width:
        _gradient(builder, width, dx, dy, in_words(index), largest=True, **window)
        return
    _per_element(builder, gradient, dx, dy, index, dtype=dy.dtype.name, largest=True, **window)


def _avg_pool2d(builder: Launches, y: View, x: View, **window: Pair) -> None:
    width = width_of((y, x)) if y.size and is_on("pool") else 0
    if width:
        _windows(builder, width, y, x, x, largest=False, **window)
        return
    _per_element(builder, mean_windows, y, x, dtype=x.dtype.name, **window)


def _avg_pool2d_grad(builder: Launches, dx: View, dy: View, *, x_shape: Shape, **window: Pair) -> None:
    width = width_of((dx, dy)) if dx.size and is_on("pool") else 0
    if width:
        _gradient(builder, width, dx, dy, dy, largest=False, **window)
        return
    _per_element(builder, gradient, dx, dy, dy, dtype=dy.dtype.name, largest=False, **window)


def _adaptive_avg_pool2d(builder: Launches, y: View, x: View, *, size: Pair) -> None:
    """Add launches: the mean of each cell of a ``size`` grid; for size (1, 1) whole thread blocks sum each plane."""
    if size == (1, 1):
        sum_over(builder, y, x, (2, 3), scale=1.0 / (x.shape[2] * x.shape[3]))
    else:
        _per_element(builder, mean_cells, y, x, dtype=x.dtype.name)


def _adaptive_avg_pool2d_grad(builder: Launches, dx: View, dy: View, *, x_shape: Shape) -> None:
    if dy.shape[2:] == (1, 1):
        share = np.dtype(compute(dx.dtype)).type(1 / (dx.shape[2] * dx.shape[3]))
        over_elements(builder, dx, dy, formula="mul", form="a, number", value=share)
        return
    _per_element(builder, cells_gradient, dx, dy, dtype=dy.dtype.name)


KERNELS: dict[str, Kernel] = {
    "max_pool2d": Kernel(_max_pool2d), "max_pool2d_grad": Kernel(_max_pool2d_grad),
    "avg_pool2d": Kernel(_avg_pool2d), "avg_pool2d_grad": Kernel(_avg_pool2d_grad),
    "adaptive_avg_pool2d": Kernel(_adaptive_avg_pool2d), "adaptive_avg_pool2d_grad": Kernel(_adaptive_avg_pool2d_grad),
}
