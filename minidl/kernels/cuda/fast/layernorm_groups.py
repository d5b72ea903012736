"""Layer normalisation of dense rows of whole groups of 16 bytes: several rows per thread block.

It does the work of ``layernorm``, which uses a thread block per row. A lane, one of the threads that share a row, holds
up to HELD elements of it in registers, in groups ``lanes`` apart, so that neighbouring lanes read adjacent groups; the
sums of a row's lanes are combined in shared memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.fast.element_groups import group_width
from minidl.kernels.cuda.launch import View, blocks_of
from minidl.kernels.cuda.layout import power_of_two
from minidl.kernels.cuda.tools import Tools

HELD = 32  # elements of a row per lane: with twice as many bfloat16 the compiler spills them to memory


def shape_of(*wide: View) -> dict[str, int] | None:
    """Return the kernel's options: elements of a group, threads of a row, groups of each of them, threads of a block.
    wide: the operands that have full rows, unlike weights (one row) and statistics.
    None if these are not dense, aligned rows of whole groups of 16 bytes, or if a row is too long for one block."""
    length = wide[0].shape[-1]
    width = group_width(length, *wide)
    if not width or not all(a.contiguous for a in wide):
        return None
    groups, most = length // width, HELD // width
    lanes = power_of_two(blocks_of(groups, most))
    if lanes > launch.THREADS:
        return None
    return {"width": width, "lanes": lanes, "held": blocks_of(groups, lanes), "threads": launch.THREADS}


def over_lanes(tools: Tools, lanes: int, unite: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``united(value, scratch)``, the reduction of the values of a row's ``lanes`` threads.
    It is a tree of ``unite(a, b)``, and every thread gets the result."""
    cuda, unite = tools.cuda, tools.device(unite)

    def united(value: Any, scratch: Any) -> Any:
        thread = cuda.threadIdx.x
        scratch[thread] = value
        cuda.syncthreads()
        half = lanes // 2
        while half >= 1:
            if thread % lanes < half:
                scratch[thread] = unite(scratch[thread], scratch[thread + half])
            cuda.syncthreads()
            half //= 2
        result = scratch[thread - thread % lanes]
        cuda.syncthreads()  # before a thread writes the next value
        return result
    return tools.device(united)


def plus(a: Any, b: Any) -> Any:
    """Return a + b."""
    return a + b


def normalise_row_groups(tools: Tools, *, dtype: str, width: int, lanes: int, held: int,
                         threads: int) -> Callable[..., None]:
    """Return a kernel: y = (x - mean) rstd gamma + beta, and each row's mean and rstd.
    width, lanes, held, threads: from ``shape_of``. The kernel's argument ``share`` is 1 / length of a row."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    (load_wide, store_wide), lane_sum = tools.wide(dtype), over_lanes(tools, lanes, plus)
    sqrt, in_block, size = tools.scalar(dtype).sqrt, threads // lanes, held * width

    def kernel(y: Any, x: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, eps: Any, share: Any, gamma_s: Any,
               beta_s: Any, groups: Any, count: Any) -> None:
        scratch, values = cuda.shared.array(threads, number), cuda.local.array(size, number)
        lane = cuda.threadIdx.x % lanes
        r = np.int64(cuda.blockIdx.x) * in_block + cuda.threadIdx.x // lanes
        level, square = number(0), number(0)
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                load(x, r * groups + lane + k * lanes, values, k * width)
                for v in range(k * width, (k + 1) * width):
                    level += values[v]
        level = lane_sum(level, scratch) * share
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                for v in range(k * width, (k + 1) * width):
                    values[v] -= level
                    square += values[v] * values[v]
        scale = number(1) / number(sqrt(lane_sum(square, scratch) * share + eps))
        if r < count and lane == 0:
            store_wide(mean, r, level)
            store_wide(rstd, r, scale)
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                for v in range(width):
                    c = (lane + k * lanes) * width + v
                    value = values[k * width + v] * scale * load_wide(gamma, c * gamma_s)
                    values[k * width + v] = value + load_wide(beta, c * beta_s)
                store(y, r * groups + lane + k * lanes, values, k * width)
    return kernel


def row_groups_gradient(tools: Tools, *, dtype: str, width: int, lanes: int, held: int,
                        threads: int) -> Callable[..., None]:
    """Return a kernel: dx = rstd (g - avg(g) - xhat avg(g xhat)), with g = dy gamma, xhat = (x - mean) rstd.
    avg: over a row. width, lanes, held, threads: from ``shape_of``. Its argument ``share`` is 1 / length of a row."""
    cuda, (load, store), number = tools.cuda, tools.group(dtype, width), tools.number(dtype)
    load_wide, lane_sum = tools.wide(dtype)[0], over_lanes(tools, lanes, plus)
    in_block, size = threads // lanes, held * width

    def kernel(dx: Any, dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, share: Any, gamma_s: Any,
               groups: Any, count: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        hats, gradients = cuda.local.array(size, number), cuda.local.array(size, number)
        lane = cuda.threadIdx.x % lanes
        r = np.int64(cuda.blockIdx.x) * in_block + cuda.threadIdx.x // lanes
        level, slope, centre, scale = number(0), number(0), number(0), number(0)
        if r < count:
            centre, scale = load_wide(mean, r), load_wide(rstd, r)
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                load(x, r * groups + lane + k * lanes, hats, k * width)
                load(dy, r * groups + lane + k * lanes, gradients, k * width)
                for v in range(width):
                    at = k * width + v
                    hats[at] = (hats[at] - centre) * scale
                    gradients[at] *= load_wide(gamma, ((lane + k * lanes) * width + v) * gamma_s)
                    level += gradients[at]
                    slope += gradients[at] * hats[at]
        level = lane_sum(level, scratch) * share
        slope = lane_sum(slope, scratch) * share
        for k in range(held):
            if r < count and lane + k * lanes < groups:
                for v in range(k * width, (k + 1) * width):
                    gradients[v] = (gradients[v] - level - hats[v] * slope) * scale
                store(dx, r * groups + lane + k * lanes, gradients, k * width)
    return kernel
