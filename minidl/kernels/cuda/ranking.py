"""The k largest or smallest elements of rows, and log-softmax: one thread block per row.

Each of the k elements is found by one pass over the row, as the next in order after the previous one (NaN first, then
by size, of equals the first). That needs no memory for sorted rows, and k is small (1 for a maximum).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minidl.kernels.cuda.attention import row_place
from minidl.kernels.cuda.launch import Kernel, Launches, View, integers
from minidl.kernels.cuda.layout import merged
from minidl.kernels.cuda.rows import rows, shape_of_block
from minidl.kernels.cuda.shape import copy
from minidl.kernels.cuda.tools import Function, Tools


def _precedes(tools: Tools, largest: bool) -> Function:
    """Return ``precedes(a, i, b, j)``: True if element i, of value a, comes before element j, of value b.

    NaN comes first, then the order is by size, and the first of equal elements comes first.
    """
    def precedes(a: Any, i: Any, b: Any, j: Any) -> Any:
        if a != a:
            return b == b or i < j
        if b != b:
            return False
        if a == b:
            return i < j
        return a > b if largest else a < b
    return tools.device(precedes)


def ranked(tools: Tools, *, dtype: str, largest: bool, threads: int) -> Callable[..., None]:
    """Return a kernel: each row's k largest (or smallest) elements and their indices; rows in x's memory order."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, precedes = row_place(tools), _precedes(tools, largest)

    def kernel(values: Any, index: Any, x: Any, k: Any, width: Any, n1: Any, n2: Any, x0: Any, x1: Any, x2: Any,
               x_s: Any, v0: Any, v1: Any, v2: Any, v_s: Any, i0: Any, i1: Any, i2: Any, i_s: Any) -> None:
        held, places = cuda.shared.array(threads, number), cuda.shared.array(threads, np.int64)
        r, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        at = place(r, n1, n2, x0, x1, x2)
        values_at, index_at = place(r, n1, n2, v0, v1, v2), place(r, n1, n2, i0, i1, i2)
        before, before_at = number(0), np.int64(-1)
        for j in range(k):
            best, best_at = number(0), np.int64(-1)
            for i in range(thread, width, threads):
                value = load(x, at + i * x_s)
                open_ = before_at < 0 or precedes(before, before_at, value, i)
                if open_ and (best_at < 0 or precedes(value, i, best, best_at)):
                    best, best_at = value, np.int64(i)
            held[thread], places[thread] = best, best_at
            cuda.syncthreads()
            half = threads // 2
            while half >= 1:
                if thread < half:
                    other, other_at = held[thread + half], places[thread + half]
                    if other_at >= 0 and (places[thread] < 0
                                          or precedes(other, other_at, held[thread], places[thread])):
                        held[thread], places[thread] = other, other_at
                cuda.syncthreads()
                half //= 2
            before, before_at = held[0], places[0]
            cuda.syncthreads()  # before a thread writes the next element
            if thread == 0:
                store(values, values_at + j * v_s, before)
                index[index_at + j * i_s] = before_at
    return kernel


def log_softmax(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: y = x - log(sum(exp(x))), row by row; y may share x's bytes, as threads write what they read."""
    cuda, (load, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    place, block_sum, block_max = row_place(tools), tools.tile_sum(1, threads), tools.block_max(threads)
    exp, log, lowest = tools.scalar(dtype).exp, tools.scalar(dtype).log, number(-np.inf)

    def kernel(y: Any, x: Any, width: Any, n1: Any, n2: Any, y0: Any, y1: Any, y2: Any, y_s: Any, x0: Any, x1: Any,
               x2: Any, x_s: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        r, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        y_at, x_at = place(r, n1, n2, y0, y1, y2), place(r, n1, n2, x0, x1, x2)
        top, total = lowest, number(0)
        for i in range(thread, width, threads):
            value = load(x, x_at + i * x_s)
            if not value <= top:
                top = value
        top = block_max(top, scratch)
        for i in range(thread, width, threads):
            total += exp(load(x, x_at + i * x_s) - top)
        level = number(log(block_sum(total, scratch)))
        for i in range(thread, width, threads):
            store(y, y_at + i * y_s, load(x, x_at + i * x_s) - top - level)
    return kernel


def _topk(builder: Launches, values: View, index: View, x: View, *, k: int, largest: bool) -> None:
    """Add launches: values, index = each row's k largest (or smallest) elements, best first, and their indices."""
    if values.size:
        firsts = [replace(a, shape=a.shape[:-1], strides=a.strides[:-1]) for a in (values, index)]
        if len(merged(firsts[0].shape, x.strides[:-1], firsts[0].strides)) > 3:  # no kernel walks over more
            dense = builder.scratch(x.shape, x.dtype.name)
            copy(builder, dense, x)
            x = dense
        (x, *firsts), count, arguments = rows(builder, [x], firsts)
        steps = (*arguments[:-5], *integers(values.strides[-1]), *arguments[-4:-1], *integers(index.strides[-1]))
        builder.launch(ranked, count, *firsts, x, *integers(k), *steps, dtype=x.dtype.name, largest=largest,
                       threads=shape_of_block(x.shape[-1])["threads"])


def _log_softmax(builder: Launches, y: View, x: View) -> None:
    """Add launches: y = x - log(sum(exp(x))), row by row."""
    if y.size:
        operands, count, arguments = rows(builder, [y, x], [])
        builder.launch(log_softmax, count, *operands, *arguments, dtype=x.dtype.name,
                       threads=shape_of_block(x.shape[-1])["threads"])


KERNELS: dict[str, Kernel] = {"topk": Kernel(_topk), "log_softmax": Kernel(_log_softmax)}
