"""Pooling of channels-last maps: a thread handles a group of channels of several adjacent windows.

The windows' place is computed once for all of them, and columns that they share are read once; a thread of
``pool_groups`` has one window. Every result uses the same values in the same order, so it has the same bits. A loop
over columns would not be unrolled and its conditions would not be constants, so each column is a function of its own,
called one after another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.fast.pool_groups import INDEX_BYTES, in_bytes, place_of_group
from minidl.kernels.cuda.tools import Tools

Pair = tuple[int, int]
HELD = 16  # results of a thread, at most


def abreast(width: int) -> int:
    """Return how many adjacent windows a thread computes, for groups of ``width`` channels."""
    return HELD // width


def columns_of(several: int, size: int, step: int) -> list[int]:
    """Return the columns that ``several`` adjacent windows cover, counted from the first window's first column.
    size: the columns of a window; step: those from one window to the next."""
    return sorted({q * step + s for q in range(several) for s in range(size)})


def windows_abreast(tools: Tools, *, dtype: str, width: int, largest: bool, kernel: Pair, stride: Pair, padding: Pair,
                     narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: the mean of each window, padding as zeros; or (``largest``) its maximum and position r * S + s.

    Of equal elements the first counts, and NaN counts as the largest. width: channels of a group of 16 bytes. narrow:
    True if all indices are below 2^31.
    """
    cuda, store, number = tools.cuda, tools.group(dtype, width)[1], tools.number(dtype)
    (locate, _), kind, place = tools.walk(narrow), tools.integer if narrow else np.int64, place_of_group(tools, narrow)
    (r_n, s_n), words, several, size = kernel, width // INDEX_BYTES, abreast(width), number(kernel[0] * kernel[1])
    begin = number(-np.inf if largest else 0)
    read = _read_all(tools, columns_of(several, s_n, stride[1]), dtype=dtype, width=width, largest=largest, size=s_n,
                     step=stride[1], kind=kind)
    (p_step, q_step), (r_pad, s_pad), pack = stride, padding, tools.device(in_bytes)

    def run(y: Any, index: Any, x: Any, count: Any, groups: Any, across: Any, p_n: Any, q_n: Any, h_n: Any,
            w_n: Any) -> None:
        values, best = cuda.local.array(width, number), cuda.local.array(HELD, number)
        chosen = cuda.local.array(HELD, np.int32)
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, p, b, group = locate(i, p_n, across, groups)
            q = b * several
            top, left = p * p_step - r_pad, q * q_step - s_pad
            for k in range(several):
                outside = max(0, -top) * s_n + max(0, -left - k * q_step)  # the index for a window of -inf only
                for v in range(k * width, (k + 1) * width):
                    best[v], chosen[v] = begin, np.int32(outside)
            for r in range(r_n):
                if 0 <= np.int32(top + r) < np.int32(h_n):
                    first = place(n, top + r, left, group, h_n, w_n, groups)
                    read(best, chosen, values, x, first, kind(groups), np.int32(left), np.int32(w_n),
                         np.int32(r * s_n))
            for k in range(several):
                if q + k < q_n:
                    at = place(n, p, q + k, group, p_n, q_n, groups)
                    if largest:
                        for w in range(words):
                            index[np.int64(kind(at * words + w))] = pack(chosen, k * width + w * INDEX_BYTES)
                    else:
                        for v in range(k * width, (k + 1) * width):
                            best[v] /= size
                    store(y, np.int64(at), best, k * width)
    return run


def _read_all(tools: Tools, columns: list[int], **options: Any) -> Callable[..., Any]:
    """Return a device function that reads these columns of a row, one after another.

    It is ``read(best, chosen, values, x, first, groups, left, w_n, tap)``: ``left`` is the first window's first column,
    ``first`` its group of x, ``tap`` that of the row's first column.
    """
    column, *others = columns
    take, kind = _read_one(tools, column, **options), options["kind"]

    def one(best: Any, chosen: Any, values: Any, x: Any, first: Any, groups: Any, left: Any, w_n: Any,
            tap: Any) -> None:
        if 0 <= np.int32(left + column) < w_n:
            take(best, chosen, values, x, np.int64(kind(first + kind(column) * groups)), tap)
    if not others:
        return tools.device(one)
    one, rest = tools.device(one), _read_all(tools, others, **options)

    def each(best: Any, chosen: Any, values: Any, x: Any, first: Any, groups: Any, left: Any, w_n: Any,
             tap: Any) -> None:
        one(best, chosen, values, x, first, groups, left, w_n, tap)
        rest(best, chosen, values, x, first, groups, left, w_n, tap)
    return tools.device(each)


def _read_one(tools: Tools, column: int, *, dtype: str, width: int, largest: bool, size: int, step: int,
              kind: Any) -> Callable[..., Any]:
    """Return ``take(best, chosen, values, x, at, tap)`` for this column of a row; its group of x has index ``at``."""
    load, several = tools.group(dtype, width)[0], abreast(width)

    def take_larger(best: Any, chosen: Any, values: Any, x: Any, at: Any, tap: Any) -> None:
        load(x, at, values, 0)
        for k in range(several):
            if 0 <= column - k * step < size:
                for v in range(width):
                    to = k * width + v
                    if not values[v] <= best[to] and best[to] == best[to]:  # larger, or the first NaN
                        best[to], chosen[to] = values[v], np.int32(tap + column - k * step)

    def add(best: Any, chosen: Any, values: Any, x: Any, at: Any, tap: Any) -> None:
        load(x, at, values, 0)
        for k in range(several):
            if 0 <= column - k * step < size:
                for v in range(width):
                    best[k * width + v] += values[v]
    return tools.device(take_larger if largest else add)
