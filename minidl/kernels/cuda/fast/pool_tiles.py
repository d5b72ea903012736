"""Gradients of pooling of channels-last maps: a thread handles a group of channels of a tile of pixels.

A tile is as high and as wide as the windows' stride (two, if that is one). So it is known at compile time which windows
reach into it, and where each of its pixels is in each of them. A thread reads each window once; in ``pool_groups`` a
thread has one pixel, divides to find its windows, and reads them for that pixel alone. Every pixel is the same sum in
the same order, so it has the same bits. A loop over windows would not be unrolled and its conditions would not be
constants, so each window is a function of its own, called one after another.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from minidl.kernels.cuda.fast.pool_groups import INDEX_BYTES, place_of_group
from minidl.kernels.cuda.tools import Tools

Pair = tuple[int, int]
MOST_HELD = 64  # sums of a thread, at most: a register each
MOST_PARTS = 16  # windows that reach into a tile, at most: each is separate code


def tile_of(step: int) -> int:
    """Return the pixels of a tile along a dimension: the windows' stride ``step``, or 2 if that is 1."""
    return max(step, 2)


def reaching(size: int, step: int, pad: int) -> range:
    """Return the windows d that reach into a tile, whose row (or column) j is row j + pad - d * step of window d.
    size: rows (or columns) of a window; step: its stride; pad: the padding."""
    return range((pad - size) // step + 1, (tile_of(step) - 1 + pad) // step + 1)


def held_width(width: int, kernel: Pair, stride: Pair, padding: Pair) -> int:
    """Return how many channels a thread handles, at most ``width``; 0 if another kernel must be used.
    That is so if a thread would have more than MOST_HELD sums, or a tile more than MOST_PARTS windows."""
    pixels = tile_of(stride[0]) * tile_of(stride[1])
    down, right = (len(reaching(*along)) for along in zip(kernel, stride, padding, strict=True))
    fitting = [w for w in (width, INDEX_BYTES) if 0 < w <= width and w * pixels <= MOST_HELD]
    return fitting[0] if fitting and down * right <= MOST_PARTS else 0


def gradient_of_tiles(tools: Tools, *, dtype: str, width: int, largest: bool, kernel: Pair, stride: Pair, padding: Pair,
                      narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = the sum of dy over windows with their maximum here, or of dy / (R S) if not ``largest``.
    width: channels of a thread (``held_width``). narrow: True if all indices are below 2^31."""
    cuda, store, number = tools.cuda, tools.group(dtype, width)[1], tools.number(dtype)
    (locate, _), kind, place = tools.walk(narrow), tools.integer if narrow else np.int64, place_of_group(tools, narrow)
    (tall, wide), size = map(tile_of, stride), number(kernel[0] * kernel[1])
    held, (p_step, q_step) = tall * wide * width, (tall // stride[0], wide // stride[1])
    down, right = (reaching(*along) for along in zip(kernel, stride, padding, strict=True))
    add = _add_all(tools, list(product(down, right)), dtype=dtype, width=width, largest=largest, kernel=kernel,
                   stride=stride, padding=padding, kind=kind)

    def run(dx: Any, dy: Any, index: Any, count: Any, groups: Any, tiles_h: Any, tiles_w: Any, h_n: Any, w_n: Any,
            p_n: Any, q_n: Any) -> None:
        total, values = cuda.local.array(held, number), cuda.local.array(width, number)
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, a, b, group = locate(i, tiles_h, tiles_w, groups)
            for v in range(held):
                total[v] = number(0)
            p, q, h, w = a * p_step, b * q_step, a * tall, b * wide
            add(total, values, dy, index, place(n, p, q, group, p_n, q_n, groups), kind(kind(q_n) * kind(groups)),
                kind(groups), np.int32(p), np.int32(q), np.int32(p_n), np.int32(q_n))
            first, row = place(n, h, w, group, h_n, w_n, groups), kind(kind(w_n) * kind(groups))
            for j in range(tall):
                for k in range(wide):
                    if np.int32(h + j) < np.int32(h_n) and np.int32(w + k) < np.int32(w_n):
                        at = (j * wide + k) * width
                        if not largest:
                            for v in range(at, at + width):
                                total[v] /= size
                        store(dx, np.int64(kind(first + kind(j) * row + kind(k) * kind(groups))), total, at)
    return run


def _add_all(tools: Tools, windows: list[Pair], **options: Any) -> Callable[..., Any]:
    """Return a device function that adds these windows to a tile's sums, one after another.

    It is ``add(total, values, dy, index, first, row, groups, p, q, p_n, q_n)``: the tile's own window is at p, q, and
    its group of dy has index ``first``.
    """
    (down, right), *others = windows
    add, kind = _add_one(tools, down, right, **options), options["kind"]

    def one(total: Any, values: Any, dy: Any, index: Any, first: Any, row: Any, groups: Any, p: Any, q: Any, p_n: Any,
            q_n: Any) -> None:
        if 0 <= np.int32(p + down) < p_n and 0 <= np.int32(q + right) < q_n:
            add(total, values, dy, index, np.int64(kind(first + kind(down) * row + kind(right) * groups)))
    if not others:
        return tools.device(one)
    one, rest = tools.device(one), _add_all(tools, others, **options)

    def each(total: Any, values: Any, dy: Any, index: Any, first: Any, row: Any, groups: Any, p: Any, q: Any, p_n: Any,
             q_n: Any) -> None:
        one(total, values, dy, index, first, row, groups, p, q, p_n, q_n)
        rest(total, values, dy, index, first, row, groups, p, q, p_n, q_n)
    return tools.device(each)


def _add_one(tools: Tools, down: int, right: int, *, dtype: str, width: int, largest: bool, kernel: Pair, stride: Pair,
             padding: Pair, kind: Any) -> Callable[..., Any]:
    """Return ``add(total, values, dy, index, at)`` for the window this far down and right; its dy is group ``at``."""
    load, words = tools.group(dtype, width)[0], width // INDEX_BYTES
    (tall, wide), (r_n, s_n) = map(tile_of, stride), kernel
    top, left = padding[0] - down * stride[0], padding[1] - right * stride[1]

    def add_largest(total: Any, values: Any, dy: Any, index: Any, at: Any) -> None:
        load(dy, at, values, 0)
        for v in range(width):
            if v % INDEX_BYTES == 0:
                word = index[np.int64(kind(at * words + v // INDEX_BYTES))]
            tap = (word >> 8 * (v % INDEX_BYTES)) & 0xFF
            for j in range(tall):
                for k in range(wide):
                    if 0 <= j + top < r_n and 0 <= k + left < s_n and tap == (j + top) * s_n + k + left:
                        total[(j * wide + k) * width + v] += values[v]

    def add_all(total: Any, values: Any, dy: Any, index: Any, at: Any) -> None:
        load(dy, at, values, 0)
        for j in range(tall):
            for k in range(wide):
                if 0 <= j + top < r_n and 0 <= k + left < s_n:
                    for v in range(width):
                        total[(j * wide + k) * width + v] += values[v]
    return tools.device(add_largest if largest else add_all)
