"""Pooling of channels-last maps: a thread handles 16 bytes of channels of a pixel, and computes its place once.

It does the work of ``pool`` for dense channels-last maps whose channels are whole groups: the same values in the same
order, so the same bits. The i-th thread's result is the i-th group of the output.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minidl.kernels.cuda.fast.element_groups import group_width
from minidl.kernels.cuda.launch import View
from minidl.kernels.cuda.tools import Tools
from minidl.meta import int32

Pair = tuple[int, int]
INDEX_BYTES = 4  # one-byte positions that are read or written at once


def width_of(maps: tuple[View, ...], index: View | None = None) -> int:
    """Return the channels of a group of 16 bytes; 0 if the maps, or the positions ``index``, are not made of groups."""
    if index is not None and (index.pointer.offset % INDEX_BYTES or not _dense(index)):
        return 0
    return group_width(maps[0].shape[1], *maps) if all(_dense(a) for a in maps) else 0


def in_words(index: View) -> View:
    """Return the positions of maxima, one byte each, as a view whose elements are words of INDEX_BYTES positions."""
    return replace(index, dtype=int32)


def _dense(a: View) -> bool:
    _, channels, height, width = a.shape
    return a.strides == (channels * height * width, 1, width * channels, channels)


def place_of_group(tools: Tools, narrow: bool) -> Callable[..., Any]:
    """Return ``place(n, h, w, group, h_n, w_n, groups)``: the index of a group of channels in its tensor, in groups.
    h_n, w_n, groups: height, width, and groups of a pixel. narrow: all indices are below 2^31, so 32 bits suffice."""
    kind = tools.integer if narrow else np.int64

    def place(n: Any, h: Any, w: Any, group: Any, h_n: Any, w_n: Any, groups: Any) -> Any:
        row = kind(kind(n) * kind(h_n) + kind(h))
        return kind(kind(row * kind(w_n) + kind(w)) * kind(groups) + kind(group))
    return tools.device(place)


def in_bytes(chosen: Any, c: Any) -> Any:
    """Return the word that holds INDEX_BYTES entries of ``chosen`` from the c-th on, the first in its lowest byte."""
    return np.int32(chosen[c] | chosen[c + 1] << 8 | chosen[c + 2] << 16 | chosen[c + 3] << 24)


def windows_of_groups(tools: Tools, *, dtype: str, width: int, largest: bool, kernel: Pair, stride: Pair, padding: Pair,
                      narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: the mean of each window, padding as zeros; or (``largest``) its maximum and position r * S + s.

    Of equal elements the first counts, and NaN counts as the largest. width: channels of a group of 16 bytes. narrow:
    True if groups are fewer than 2^31.
    """
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    (locate, _), begin, (r_n, s_n) = tools.walk(narrow), number(-np.inf if largest else 0), kernel
    (r_step, s_step), (r_pad, s_pad), words, pack = stride, padding, width // INDEX_BYTES, tools.device(in_bytes)
    size = number(kernel[0] * kernel[1])

    def run(y: Any, index: Any, x: Any, count: Any, groups: Any, p_n: Any, q_n: Any, h_n: Any, w_n: Any) -> None:
        values, best = cuda.local.array(width, number), cuda.local.array(width, number)
        chosen = cuda.local.array(width, np.int32)
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, p, q, group = locate(i, p_n, q_n, groups)
            top, left = p * r_step - r_pad, q * s_step - s_pad
            first = max(0, -top) * s_n + max(0, -left)  # the index for a window of -inf only
            for v in range(width):
                best[v], chosen[v] = begin, np.int32(first)
            for r in range(r_n):
                for s in range(s_n):
                    if 0 <= top + r < h_n and 0 <= left + s < w_n:
                        load(x, ((n * h_n + top + r) * w_n + left + s) * groups + group, values, 0)
                        for v in range(width):
                            if not largest:
                                best[v] += values[v]
                            elif not values[v] <= best[v] and best[v] == best[v]:  # larger, or the first NaN
                                best[v], chosen[v] = values[v], np.int32(r * s_n + s)
            if largest:
                for w in range(words):
                    index[i * words + w] = pack(chosen, w * INDEX_BYTES)
            else:
                for v in range(width):
                    best[v] /= size
            store(y, i, best, 0)
    return run


def _covering(tools: Tools) -> Callable[..., Any]:
    """Return ``covering(h, p_n, size, step, pad)``: first and last + 1 of p_n windows that contain row (or column) h.
    Window p does if p * step - pad <= h < p * step - pad + size. Divides unsigned 32-bit numbers, which is faster than
    64 bits, so no operand may be negative."""
    index = tools.integer

    def covering(h: Any, p_n: Any, size: Any, step: Any, pad: Any) -> Any:
        beyond = index(h) + index(pad)
        first = index(index(max(index(beyond + index(step)), index(size)) - index(size)) // index(step))
        last = min(index(p_n), index(beyond // index(step)) + index(1))
        return np.int64(first), np.int64(last)
    return tools.device(covering)


def gradient_of_groups(tools: Tools, *, dtype: str, width: int, largest: bool, kernel: Pair, stride: Pair,
                       padding: Pair, narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: dx = the sum of dy over windows with their maximum here, or of dy / (R S) if not ``largest``.

    The windows come in their order. width, narrow: as in ``windows_of_groups``."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    (locate, _), (r_n, s_n), size = tools.walk(narrow), kernel, number(kernel[0] * kernel[1])
    (r_step, s_step), (r_pad, s_pad), words = stride, padding, width // INDEX_BYTES
    covering = _covering(tools)

    def run(dx: Any, dy: Any, index: Any, count: Any, groups: Any, h_n: Any, w_n: Any, p_n: Any, q_n: Any) -> None:
        total, values = cuda.local.array(width, number), cuda.local.array(width, number)
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, h, w, group = locate(i, h_n, w_n, groups)
            for v in range(width):
                total[v] = number(0)
            first_p, last_p = covering(h, p_n, r_n, r_step, r_pad)
            first_q, last_q = covering(w, q_n, s_n, s_step, s_pad)
            for p in range(first_p, last_p):
                for q in range(first_q, last_q):
                    tap = np.int32((h + r_pad - p * r_step) * s_n + (w + s_pad - q * s_step))
                    at = ((n * p_n + p) * q_n + q) * groups + group
                    load(dy, at, values, 0)
                    for v in range(width):
                        if not largest:
                            total[v] += values[v]
                        else:
                            if v % INDEX_BYTES == 0:
                                word = index[at * words + v // INDEX_BYTES]
                            if (word >> 8 * (v % INDEX_BYTES)) & 0xFF == tap:
                                total[v] += values[v]
            if not largest:
                for v in range(width):
                    total[v] /= size
            store(dx, i, total, 0)
    return run
