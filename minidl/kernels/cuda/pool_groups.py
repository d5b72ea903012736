"""Max-pooling where channels lie side by side: a thread has 16 bytes of channels of a pixel, and finds its place once.

What ``pool`` does for any layout is done here for dense channels-last maps whose channels are whole groups: the same
values in the same order, so the same bits. The i-th thread's result is the i-th group of the output.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.elementwise import group_width
from minidl.kernels.cuda.launch import View
from minidl.kernels.cuda.tools import Tools

Pair = tuple[int, int]


def width_of(maps: tuple[View, ...], index: View) -> int:
    """Channels of a group; 0 if these maps, and the index beside one of them, do not lie in such groups."""
    return group_width(maps[0].shape[1], *maps) if all(_dense(a) for a in (*maps, index)) else 0


def _dense(a: View) -> bool:
    _, channels, height, width = a.shape
    return a.strides == (channels * height * width, 1, width * channels, channels)


def max_windows_of_groups(tools: Tools, *, dtype: str, width: int, kernel: Pair, stride: Pair, padding: Pair,
                          narrow: bool, threads: int) -> Callable[..., None]:
    """Maximum of each window and its position r * S + s, the first of equal ones; a NaN is larger than all."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    (locate, _), lowest, (r_n, s_n) = tools.walk(narrow), number(-np.inf), kernel
    (r_step, s_step), (r_pad, s_pad) = stride, padding

    def run(y: Any, index: Any, x: Any, count: Any, groups: Any, p_n: Any, q_n: Any, h_n: Any, w_n: Any) -> None:
        values, best = cuda.local.array(width, number), cuda.local.array(width, number)
        chosen = cuda.local.array(width, np.uint8)
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, p, q, group = locate(i, p_n, q_n, groups)
            top, left = p * r_step - r_pad, q * s_step - s_pad
            first = max(0, -top) * s_n + max(0, -left)  # what a window of -inf alone reports
            for v in range(width):
                best[v], chosen[v] = lowest, np.uint8(first)
            for r in range(r_n):
                for s in range(s_n):
                    if 0 <= top + r < h_n and 0 <= left + s < w_n:
                        load(x, ((n * h_n + top + r) * w_n + left + s) * groups + group, values, 0)
                        for v in range(width):
                            if not values[v] <= best[v] and best[v] == best[v]:  # larger, or the first NaN
                                best[v], chosen[v] = values[v], np.uint8(r * s_n + s)
            store(y, i, best, 0)
            for v in range(width):
                index[i * width + v] = chosen[v]
    return run


def max_gradient_of_groups(tools: Tools, *, dtype: str, width: int, kernel: Pair, stride: Pair, padding: Pair,
                           narrow: bool, threads: int) -> Callable[..., None]:
    """dx: the sum of dy over the windows whose maximum was here, in the order of the windows."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    (locate, _), (r_n, s_n) = tools.walk(narrow), kernel
    (r_step, s_step), (r_pad, s_pad) = stride, padding

    def run(dx: Any, dy: Any, index: Any, count: Any, groups: Any, h_n: Any, w_n: Any, p_n: Any, q_n: Any) -> None:
        total, values = cuda.local.array(width, number), cuda.local.array(width, number)
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < count:
            n, h, w, group = locate(i, h_n, w_n, groups)
            for v in range(width):
                total[v] = number(0)
            # Windows p with p * step - pad <= h < p * step - pad + size.
            first_p, last_p = max(0, (h + r_pad - r_n + r_step) // r_step), min(p_n, (h + r_pad) // r_step + 1)
            first_q, last_q = max(0, (w + s_pad - s_n + s_step) // s_step), min(q_n, (w + s_pad) // s_step + 1)
            for p in range(first_p, last_p):
                for q in range(first_q, last_q):
                    tap = np.uint8((h + r_pad - p * r_step) * s_n + (w + s_pad - q * s_step))
                    at = ((n * p_n + p) * q_n + q) * groups + group
                    load(dy, at, values, 0)
                    for v in range(width):
                        if index[at * width + v] == tap:
                            total[v] += values[v]
            store(dx, i, total, 0)
    return run
