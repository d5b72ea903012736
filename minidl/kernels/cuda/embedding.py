"""Rows selected by number (embedding, gather), and their gradients.

The gradient adds rows of one number in the order of their positions, without atomics, so that its bits are always the
same. Positions are sorted by number (a bitonic network over number and position together), runs of one number are
summed in chunks of CHUNK positions, and a second launch combines runs that span several chunks.

A GPU cannot raise: a number that is not a row reads NaN, and is left out of the gradient.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.attention import row_place
from minidl.kernels.cuda.launch import Kernel, Launches, View, blocks_of, compute, integers
from minidl.kernels.cuda.layout import merged, padded, power_of_two
from minidl.kernels.cuda.shape import copy, zero
from minidl.kernels.cuda.tools import Tools
from minidl.meta import DType, Shape, row_major

CHUNK = 32  # sorted positions that one thread sums
NONE = (1 << 63) - 1  # the key for "no position", sorted last


# Device functions ---------------------------------------------------------------------------------------------------
def taken_rows(tools: Tools, *, dtype: str, result: str, columns: int, threads: int) -> Callable[..., None]:
    """Return a kernel: y[i] = table[i // per, ids[i]], a row each, rounded from the table's dtype to ``result``.
    If there is no such row, y[i] is NaN (0 for integers)."""
    cuda, load, store, number = tools.cuda, tools.memory(dtype)[0], tools.memory(result)[1], tools.number(dtype)
    place, lanes, nothing = row_place(tools), threads // columns, number(np.nan if dtype != "int64" else 0)

    def kernel(y: Any, table: Any, ids: Any, count: Any, width: Any, rows: Any, per: Any, table_n: Any, table_r: Any,
               table_d: Any, n1: Any, n2: Any, i0: Any, i1: Any, i2: Any) -> None:
        across, thread = (width + columns - 1) // columns, cuda.threadIdx.x
        block = np.int64(cuda.blockIdx.x)
        i, d = block // across * lanes + thread // columns, block % across * columns + thread % columns
        if i < count and d < width:
            row = np.int64(ids[place(i, n1, n2, i0, i1, i2)])
            value = nothing
            if 0 <= row < rows:
                value = load(table, i // per * table_n + row * table_r + d * table_d)
            store(y, i * width + d, value)
    return kernel


def position_keys(tools: Tools, *, threads: int) -> Callable[..., None]:
    """Return a kernel: keys[i] = 2^32 * (row of position i) + i, or NONE if there is no such row or position."""
    cuda, place = tools.cuda, row_place(tools)

    def kernel(keys: Any, ids: Any, count: Any, length: Any, rows: Any, per: Any, n1: Any, n2: Any,
               i0: Any, i1: Any, i2: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < length:
            key = np.int64(NONE)
            if i < count:
                row = np.int64(ids[place(i, n1, n2, i0, i1, i2)])
                if 0 <= row < rows:
                    key = ((i // per * rows + row) << 32) | i
            keys[i] = key
    return kernel


def sorted_tiles(tools: Tools, *, tile: int, threads: int) -> Callable[..., None]:
    """Return a kernel: the steps of a bitonic sort that stay within a tile of ``tile`` keys.
    The kernel makes sorted runs of ``low`` to ``high`` keys."""
    cuda = tools.cuda

    def kernel(keys: Any, low: Any, high: Any) -> None:
        held = cuda.shared.array(tile, np.int64)
        first, thread = np.int64(cuda.blockIdx.x) * tile, cuda.threadIdx.x
        for k in range(thread, tile, threads):
            held[k] = keys[first + k]
        cuda.syncthreads()
        size = low
        while size <= high:
            step = min(size, np.int64(tile)) // 2
            while step > 0:
                # The thread's pair: its lower member has the bit of ``step`` clear.
                a = 2 * thread - thread % step
                b = a + step
                ascending = ((first + a) & size) == 0
                left, right = held[a], held[b]
                if (left > right) == ascending:
                    held[a], held[b] = right, left
                cuda.syncthreads()
                step //= 2
            size *= 2
        for k in range(thread, tile, threads):
            keys[first + k] = held[k]
    return kernel


def exchanged(tools: Tools, *, threads: int) -> Callable[..., None]:
    """Return a kernel: one step of the bitonic sort that compares keys of different tiles."""
    cuda = tools.cuda

    def kernel(keys: Any, pairs: Any, step: Any, size: Any) -> None:
        i = np.int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i < pairs:
            a = 2 * i - i % step
            left, right = keys[a], keys[a + step]
            if (left > right) == ((a & size) == 0):
                keys[a], keys[a + step] = right, left
    return kernel


def chunk_sums(tools: Tools, *, dtype: str, result: str, threads: int) -> Callable[..., None]:
    """Return a kernel that sums, within a chunk of sorted positions, the rows of each number into the table.
    The table has the dtype ``result``.

    A run that continues in the next chunk goes into ``tails``, one that began in an earlier chunk into ``heads``.
    """
    cuda, load, store, number = tools.cuda, tools.memory(dtype)[0], tools.memory(result)[1], tools.number(dtype)
    place = row_place(tools)

    def kernel(table: Any, heads: Any, tails: Any, keys: Any, dy: Any, count: Any, width: Any, n1: Any, n2: Any,
               dy0: Any, dy1: Any, dy2: Any, dy_d: Any) -> None:
        across = (width + threads - 1) // threads
        chunk = np.int64(cuda.blockIdx.x) // across
        d = np.int64(cuda.blockIdx.x) % across * threads + cuda.threadIdx.x
        if d < width:
            start, stop = chunk * CHUNK, min(count, (chunk + 1) * CHUNK)
            before = np.int64(-1) if start == 0 else keys[start - 1] >> 32
            behind = np.int64(-1) if stop >= count else keys[stop] >> 32
            row, total = keys[start] >> 32, number(0)
            for at in range(start, stop + 1):
                following = np.int64(-2) if at == stop else keys[at] >> 32
                if following != row:  # the run or the chunk has ended
                    if row != NONE >> 32:
                        if row == before:
                            heads[chunk * width + d] = total
                        elif at == stop and row == behind:
                            tails[chunk * width + d] = total
                        else:
                            store(table, row * width + d, total)
                    row, total = following, number(0)
                if at < stop and row != NONE >> 32:
                    total += load(dy, place(keys[at] & 0xFFFFFFFF, n1, n2, dy0, dy1, dy2) + d * dy_d)
    return kernel


def united_chunks(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel that adds up the parts of runs of one number that begin in a chunk and end in a later one."""
    cuda, (_, store) = tools.cuda, tools.memory(dtype)

    def kernel(table: Any, heads: Any, tails: Any, keys: Any, count: Any, width: Any) -> None:
        across = (width + threads - 1) // threads
        chunk = np.int64(cuda.blockIdx.x) // across
        d = np.int64(cuda.blockIdx.x) % across * threads + cuda.threadIdx.x
        start, stop = chunk * CHUNK, (chunk + 1) * CHUNK
        if d < width and stop < count:
            row = keys[stop - 1] >> 32
            began = start == 0 or keys[start - 1] >> 32 != row or keys[start] >> 32 != row
            if began and row != NONE >> 32 and keys[stop] >> 32 == row:
                total = tails[chunk * width + d]
                while stop < count and keys[stop] >> 32 == row:
                    total += heads[stop // CHUNK * width + d]
                    stop += CHUNK
                store(table, row * width + d, total)
    return kernel


# Plans --------------------------------------------------------------------------------------------------------------
def _walk(builder: Launches, a: View, dims: int) -> tuple[View, tuple[np.int64, ...]]:
    """Return a view (or a copy) whose first ``dims`` dimensions are walked over in C order, and n1, n2, s0, s1, s2."""
    shape = a.shape[:dims]
    lines = merged(shape, row_major(shape), a.strides[:dims])
    if len(lines) > 3:
        dense = builder.scratch(a.shape, a.dtype.name)
        copy(builder, dense, a)
        return _walk(builder, dense, dims)
    lines = padded(lines, 3, 2)
    return a, integers(lines[1][0], lines[2][0], *[line[2] for line in lines])


def _take(builder: Launches, y: View, table: View, ids: View, *, rows: int, per: int, table_n: int) -> None:
    if not y.size:
        return
    ids, walk = _walk(builder, ids, len(ids.shape))
    width = table.shape[-1]
    columns = min(launch.THREADS, power_of_two(width))
    blocks = blocks_of(ids.size, launch.THREADS // columns) * blocks_of(width, columns)
    builder.launch(taken_rows, blocks, y, table, ids, *integers(ids.size, width, rows, per, table_n,
                   *table.strides[-2:]), *walk, dtype=table.dtype.name, result=y.dtype.name, columns=columns)


def _scatter(builder: Launches, table: View, dy: View, dy_dims: int, ids: View, *, rows: int, per: int) -> None:
    """Add launches: table = 0, then table[i // per * rows + ids[i]] += dy[i] for every i. table: [.., D]."""
    zero(builder, table)
    count, width = ids.size, dy.shape[-1]
    if not count or not width:
        return
    tile = min(2 * launch.THREADS, max(2, power_of_two(count)))
    length = max(tile, power_of_two(count))
    keys = builder.scratch((length,), "int64")
    ids, walk = _walk(builder, ids, len(ids.shape))
    builder.launch(position_keys, blocks_of(length, launch.THREADS), keys, ids,
                   *integers(count, length, rows, per), *walk)
    _sort(builder, keys, length, tile)
    dy, walk = _walk(builder, dy, dy_dims)
    chunks, across = blocks_of(count, CHUNK), blocks_of(width, launch.THREADS)
    heads, tails = (builder.scratch((chunks, width), compute(dy.dtype)) for _ in range(2))
    builder.launch(chunk_sums, chunks * across, table, heads, tails, keys, dy, *integers(count, width), *walk,
                   *integers(dy.strides[-1]), dtype=dy.dtype.name, result=table.dtype.name)
    if chunks > 1:
        builder.launch(united_chunks, chunks * across, table, heads, tails, keys, *integers(count, width),
                       dtype=table.dtype.name)


def _sort(builder: Launches, keys: View, length: int, tile: int) -> None:
    """Add launches that sort the keys, ascending, by Batcher's bitonic network (1968); only NONE may be repeated."""
    def within(low: int, high: int) -> None:
        builder.launch(sorted_tiles, length // tile, keys, *integers(low, high), tile=tile, threads=tile // 2)
    within(2, tile)
    size = 2 * tile
    while size <= length:
        step = size // 2
        while step >= tile:
            builder.launch(exchanged, blocks_of(length // 2, launch.THREADS), keys, *integers(length // 2, step, size))
            step //= 2
        within(size, size)
        size *= 2


def _embedding(builder: Launches, y: View, w: View, ids: View, *, dtype: DType | None = None) -> None:
    """Add launches: y = w[ids], rounded to y's dtype."""
    _take(builder, y, w, ids, rows=w.shape[0], per=max(1, ids.size), table_n=0)


def _embedding_grad(builder: Launches, dw: View, dy: View, ids: View, *, rows: int,
                    dtype: DType | None = None) -> None:
    """Add launches: dw[r] = the sum of dy over the positions where ids is r, zero if there are none."""
    _scatter(builder, dw, dy, len(dy.shape) - 1, ids, rows=rows, per=max(1, ids.size))


def _gather_rows(builder: Launches, y: View, x: View, positions: View) -> None:
    """Add launches: row n * P + p of y = row positions[n, p] of x[n], for positions [N, P]; NaN if x[n] has none."""
    _take(builder, y, x, positions, rows=x.shape[1], per=positions.shape[1], table_n=x.strides[0])


def _gather_rows_grad(builder: Launches, dx: View, dy: View, positions: View, *, x_shape: Shape) -> None:
    """Add launches: dx[n, i] = the sum of the rows of dy whose position in sequence n is i, zero if there are none."""
    assert prod(x_shape[:2]) < 1 << 31
    _scatter(builder, dx, dy, 1, positions, rows=x_shape[1], per=positions.shape[1])


KERNELS: dict[str, Kernel] = {
    "embedding": Kernel(_embedding), "embedding_grad": Kernel(_embedding_grad),
    "gather_rows": Kernel(_gather_rows), "gather_rows_grad": Kernel(_gather_rows_grad),
    "add_rows": Kernel(_gather_rows_grad),
}
