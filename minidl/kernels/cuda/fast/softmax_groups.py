"""Softmax of dense rows of whole groups of 16 bytes, and its gradient: several rows per thread block.

It does the work of ``attention``, which has a thread block per row of any layout; lanes are as in ``layernorm_groups``.
A mask may repeat over rows in any way: its row is located once per row, in whole groups.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda.fast.layernorm_groups import over_lanes, plus
from minidl.kernels.cuda.tools import Tools


def _larger(a: Any, b: Any) -> Any:
    """Return the larger of a and b, neither NaN: a NaN makes its whole row NaN through its exponential."""
    return max(a, b)


def softmax_row_groups(tools: Tools, *, dtype: str, masked: bool, width: int, lanes: int, held: int, whole: bool,
                       narrow: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: y = exp(x + mask - largest) / sum, row by row; n1, n2, m0 .. m2 locate the mask's row.
    ``whole``: the lanes together hold whole rows, so that all their loads are in flight at once.
    narrow: rows are fewer than 2^31. width, lanes, held, threads: from ``layernorm_groups.shape_of``."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    exp, index, larger = tools.scalar(dtype).exp_below, tools.integer if narrow else np.int64, tools.device(_larger)
    lane_sum, lane_max = over_lanes(tools, lanes, plus), over_lanes(tools, lanes, _larger)
    in_block, size, lowest = threads // lanes, held * width, number(-np.inf)

    def kernel(y: Any, x: Any, mask: Any, groups: Any, count: Any, n1: Any, n2: Any, m0: Any, m1: Any,
               m2: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        values, beside = cuda.local.array(size, number), cuda.local.array(width, number)
        lane = cuda.threadIdx.x % lanes
        own = np.int64(cuda.blockIdx.x) * in_block + cuda.threadIdx.x // lanes
        r = min(own, count - 1)  # threads beyond the last row read it again, so that no branch is needed
        top, total, m_at = lowest, number(0), np.int64(0)
        if masked:
            above = index(index(r) // index(n2))
            outer = index(above // index(n1))
            m_at = (np.int64(outer) * m0 + np.int64(above - outer * index(n1)) * m1
                    + np.int64(index(r) - above * index(n2)) * m2)
        for k in range(held):
            if whole or lane + k * lanes < groups:
                load(x, r * groups + lane + k * lanes, values, k * width)
                if masked:
                    load(mask, m_at + lane + k * lanes, beside, 0)
                    for v in range(width):
                        values[k * width + v] += beside[v]
            else:
                for v in range(k * width, (k + 1) * width):
                    values[v] = lowest
        for v in range(size):
            top = larger(top, values[v])
        top = lane_max(top, scratch)
        for v in range(size):
            values[v] = exp(values[v] - top)
            total += values[v]
        share = number(1) / lane_sum(total, scratch)
        for v in range(size):
            values[v] *= share
        for k in range(held):
            if own < count and (whole or lane + k * lanes < groups):
                store(y, own * groups + lane + k * lanes, values, k * width)
    return kernel


def softmax_gradient_row_groups(tools: Tools, *, dtype: str, width: int, lanes: int, held: int,
                                threads: int) -> Callable[..., None]:
    """Return a kernel: dx = (dy - sum(dy * y)) * y, row by row; options as in ``softmax_row_groups``."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    lane_sum, in_block, size = over_lanes(tools, lanes, plus), threads // lanes, held * width

    def kernel(dx: Any, dy: Any, y: Any, groups: Any, count: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        shares, gradients = cuda.local.array(size, number), cuda.local.array(size, number)
        lane = cuda.threadIdx.x % lanes
        r = np.int64(cuda.blockIdx.x) * in_block + cuda.threadIdx.x // lanes
        level = number(0)
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                load(y, r * groups + lane + k * lanes, shares, k * width)
                load(dy, r * groups + lane + k * lanes, gradients, k * width)
                for v in range(k * width, (k + 1) * width):
                    level += shares[v] * gradients[v]
        level = lane_sum(level, scratch)
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                for v in range(k * width, (k + 1) * width):
                    gradients[v] = (gradients[v] - level) * shares[v]
                store(dx, r * groups + lane + k * lanes, gradients, k * width)
    return kernel
