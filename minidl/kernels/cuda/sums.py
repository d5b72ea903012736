"""Sums over some dimensions of an array, in float32 (float64 for float64), by a fixed tree: always the same bits.

A thread block is a tile of *columns* (kept elements) by *lanes* (summed ones): each thread adds every n-th element of a
column, then the lanes of a column are added in shared memory. If there are too few columns to fill a GPU, the summed
elements are cut into *slabs*, whose sums a second launch adds; cuts depend on the shape alone. Each element is read
once.

Neighbouring threads go along the dimension with the smallest stride: 32 columns wide for channels-last (fast), one
column wide if a kept dimension is an outer one (fast if the summed elements have long runs).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.column_groups import column_sums
from minidl.kernels.cuda.fast.element_groups import group_width
from minidl.kernels.cuda.launch import Kernel, Launches, View, blocks_of, compute, integers
from minidl.kernels.cuda.layout import Dimension, digits, merged, padded, power_of_two
from minidl.kernels.cuda.shape import copy
from minidl.kernels.cuda.tools import Tools
from minidl.meta import Shape

COLUMNS = 32  # of a tile: neighbouring threads of a warp
ITEMS = 4  # elements that a thread reads before it adds them
BLOCKS = 1024  # about as many as fill the largest GPUs; the same for all GPUs, so that bits are the same
DEPTH = 8  # elements that a thread should add, at least


@dataclass(frozen=True)
class Grid:
    """The cuts of ``kept`` sums of ``count`` terms each into tiles, one for a thread block.
    A tile has ``columns`` sums, of one of ``slabs`` ranges of ``length`` terms."""

    kept: int
    count: int
    columns: int
    slabs: int
    length: int
    threads: int

    @property
    def blocks(self) -> int:
        """The number of thread blocks: one for each tile of columns and each slab."""
        return blocks_of(self.kept, self.columns) * self.slabs

    @property
    def options(self) -> dict[str, Any]:
        """The kernel's options; ``narrow`` if its indices fit 32 bits."""
        return {"columns": self.columns, "threads": self.threads, "narrow": self.count * self.kept < 1 << 31}


@dataclass(frozen=True)
class Split:
    """The dimensions of operands of one shape, separated into kept and summed ones."""

    kept: list[Dimension]
    summed: list[Dimension]
    operands: int

    def fits(self) -> bool:
        """Return True if the kernels have enough dimensions: three kept ones and four summed ones."""
        return len(self.kept) <= 3 and len(self.summed) <= 4

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of sums, one per kept element, and the number of terms of each."""
        return prod(d[0] for d in self.kept), prod(d[0] for d in self.summed)

    @property
    def columns_last(self) -> bool:
        """True if the first operand's smallest stride is along a kept dimension."""
        return bool(self.kept) and (not self.summed or self.kept[-1][1] < self.summed[-1][1])

    def arguments(self, lanes: int) -> tuple[np.int64, ...]:
        """Return kernel arguments: kept and summed dimensions' extents, a step of ``lanes``, each operand's strides."""
        kept, summed = padded(self.kept, 3, self.operands), padded(self.summed, 4, self.operands)
        extents = [d[0] for d in summed]
        strides = [d[o] for o in range(1, self.operands + 1) for d in (*kept, *summed)]
        return integers(kept[1][0], kept[2][0], *extents[1:], *digits(lanes, [prod(extents) + lanes, *extents[1:]]),
                        *strides)


def split(shape: Shape, axes: tuple[int, ...], *strides: Shape) -> Split:
    """Separate the dimensions: ``axes`` are summed, the others kept."""
    def part(indices: list[int]) -> list[Dimension]:
        return merged(tuple(shape[i] for i in indices), *[tuple(s[i] for i in indices) for s in strides])
    dims = range(len(shape))
    return Split(part([i for i in dims if i not in axes]), part([i for i in dims if i in axes]), len(strides))


def grid(parts: Split, *, reduces: bool = True) -> Grid:
    """Return the cuts of a reduction, or of an elementwise pass with constants per column (``reduces`` False)."""
    return tiled(*parts.sizes, COLUMNS if parts.columns_last else 1, reduces=reduces)


def tiled(kept: int, count: int, columns: int, *, reduces: bool) -> Grid:
    """Return the cuts for ``kept`` sums of ``count`` terms, in tiles of at most ``columns`` columns.
    reduces: as in ``grid``."""
    threads = launch.THREADS
    columns = min(columns, power_of_two(kept), threads)
    lanes, tiles = threads // columns, blocks_of(kept, columns)
    slabs = blocks_of(count, lanes * DEPTH)
    if reduces:
        slabs = max(1, min(blocks_of(BLOCKS, tiles), slabs))
    length = blocks_of(count, slabs)
    return Grid(kept, count, columns, blocks_of(count, length), length, threads)


# Device functions ---------------------------------------------------------------------------------------------------
def partial_sums(tools: Tools, *, dtype: str, result: str, columns: int, narrow: bool,
                 threads: int) -> Callable[..., None]:
    """Return a kernel: sums[slab, b] = scale times the sum of x over a slab, in the dtype ``result``.
    A slab is a range of the terms of sum b. columns: sums of a thread block. narrow: all indices are below 2^31."""
    cuda, (load, _), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    locate, advance = tools.walk(narrow)
    tile_sum, lanes = tools.tile_sum(columns, threads), threads // columns
    store = tools.memory(result)[1]

    def kernel(y: Any, x: Any, scale: Any, kept: Any, count: Any, length: Any, b1: Any, b2: Any,
               n1: Any, n2: Any, n3: Any, t0: Any, t1: Any, t2: Any, t3: Any,
               k0: Any, k1: Any, k2: Any, s0: Any, s1: Any, s2: Any, s3: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        values = cuda.local.array(ITEMS, number)
        thread = cuda.threadIdx.x
        tiles = (kept + columns - 1) // columns
        slab = np.int64(cuda.blockIdx.x) // tiles
        b = np.int64(cuda.blockIdx.x) % tiles * columns + thread % columns
        total = number(0)
        if b < kept:
            _, d0, d1, d2 = locate(b, np.int64(1) * kept, b1, b2)
            base = d0 * k0 + d1 * k1 + d2 * k2
            j, stop = slab * length + thread // columns, min(count, (slab + 1) * length)
            c0, c1, c2, c3 = locate(j, n1, n2, n3)
            while j < stop:
                for k in range(ITEMS):
                    values[k] = number(0)
                    if j + k * lanes < stop:
                        values[k] = load(x, base + c0 * s0 + c1 * s1 + c2 * s2 + c3 * s3)
                        c0, c1, c2, c3 = advance(c0, c1, c2, c3, n1, n2, n3, t0, t1, t2, t3)
                for k in range(ITEMS):
                    total += values[k]
                j += ITEMS * lanes
        total = tile_sum(total, scratch)
        if thread < columns and b < kept:
            store(y, slab * kept + b, total * scale)
    return kernel


def united_sums(tools: Tools, *, dtype: str, threads: int) -> Callable[..., None]:
    """Return a kernel: y[b] = scale times the sum of sums[slab, b] over all slabs; one thread block for each b."""
    cuda, (_, store), number = tools.cuda, tools.memory(dtype), tools.number(dtype)
    tile_sum = tools.tile_sum(1, threads)

    def kernel(y: Any, sums: Any, scale: Any, kept: Any, slabs: Any) -> None:
        scratch = cuda.shared.array(threads, number)
        b, thread = np.int64(cuda.blockIdx.x), cuda.threadIdx.x
        total = number(0)
        for slab in range(thread, slabs, threads):
            total += sums[slab * kept + b]
        total = tile_sum(total, scratch)
        if thread == 0:
            store(y, b, total * scale)
    return kernel


# Plans --------------------------------------------------------------------------------------------------------------
def few_threads(count: int) -> int:
    """Return the threads of a block that sums ``count`` numbers: the next power of two, from a warp's 32 to THREADS."""
    return min(launch.THREADS, max(min(32, launch.THREADS), power_of_two(count)))


def sum_over(builder: Launches, y: View, x: View, axes: tuple[int, ...], *, scale: float = 1.0) -> None:
    """Add launches: y = scale * sum of x over ``axes``, which y, contiguous, lacks or has with extent 1."""
    if y.size == 0:
        return
    wanted = tuple(1 if i in axes else s for i, s in enumerate(x.shape))
    # The order of the kept dimensions is that of y, so that sum b is element b of y.
    parts = split(x.shape, axes, x.strides)
    parts = Split(_in_order(x, axes), parts.summed, 1)
    if not parts.fits():
        dense = builder.scratch(x.shape, x.dtype.name)
        copy(builder, dense, x)
        return sum_over(builder, y, dense, axes, scale=scale)
    assert prod(wanted) == y.size
    number = np.dtype(compute(y.dtype)).type
    if _sum_columns(builder, y, x, parts, number(scale)):
        return
    g = grid(parts)
    arguments = (*integers(g.kept, g.count, g.length), *parts.arguments(g.threads // g.columns))
    options = {**g.options, "dtype": x.dtype.name}
    if g.slabs == 1:
        builder.launch(partial_sums, g.blocks, y, x, number(scale), *arguments, result=y.dtype.name, **options)
        return
    sums = builder.scratch((g.slabs, g.kept), compute(x.dtype))
    builder.launch(partial_sums, g.blocks, sums, x, number(1), *arguments, result=sums.dtype.name, **options)
    builder.launch(united_sums, g.kept, y, sums, number(scale), *integers(g.kept, g.slabs), dtype=y.dtype.name,
                   threads=few_threads(g.slabs))


def _sum_columns(builder: Launches, y: View, x: View, parts: Split, scale: np.generic) -> bool:
    """Launch ``column_sums`` and return True, if x is dense tables of groups of 16 bytes; else return False."""
    if len(parts.summed) != 1 or not 1 <= len(parts.kept) <= 2 or parts.kept[-1][1] != 1:
        return False
    (count, step), inside = parts.summed[0], parts.kept[-1][0]
    width = group_width(inside, x) if is_on("columns") else 0
    if not width or step != inside or len(parts.kept) == 2 and parts.kept[0][1] != count * inside:
        return False
    kept = prod(d[0] for d in parts.kept) // width
    g = tiled(kept, count, COLUMNS, reduces=True)
    sums = y if g.slabs == 1 else builder.scratch((g.slabs, kept * width), compute(x.dtype))
    builder.launch(column_sums, g.blocks, sums, x, scale if g.slabs == 1 else type(scale)(1), *integers(
        kept, count, g.length, inside // width), dtype=x.dtype.name, result=sums.dtype.name, width=width, **g.options)
    if g.slabs > 1:
        builder.launch(united_sums, kept * width, y, sums, scale, *integers(kept * width, g.slabs),
                       dtype=y.dtype.name, threads=few_threads(g.slabs))
    return True


def _in_order(x: View, axes: tuple[int, ...]) -> list[Dimension]:
    """Return the kept dimensions of x in C order, merged where possible."""
    result: list[Dimension] = []
    for i, (n, s) in enumerate(zip(x.shape, x.strides, strict=True)):
        if i in axes or n == 1:
            continue
        if result and result[-1][1] == n * s:
            result[-1] = (result[-1][0] * n, s)
        else:
            result.append((n, s))
    return result


def _sum_to(builder: Launches, y: View, x: View, *, shape: Shape, **_: Any) -> None:
    """Add launches: y = x summed over the dimensions that ``shape`` lacks or has as 1."""
    wide = (1,) * (len(x.shape) - len(shape)) + tuple(shape)
    axes = tuple(i for i, (w, n) in enumerate(zip(wide, x.shape, strict=True)) if w != n)
    if axes:
        sum_over(builder, y, x, axes)
    else:
        copy(builder, y.reshape(x.shape), x)


def _bias_grad(builder: Launches, db: View, dy: View, *, axis: int) -> None:
    """Add launches: db = the sum of dy over every dimension except ``axis``."""
    sum_over(builder, db, dy, tuple(i for i in range(len(dy.shape)) if i != axis))


KERNELS: dict[str, Kernel] = {"sum_to": Kernel(_sum_to), "bias_grad": Kernel(_bias_grad)}
