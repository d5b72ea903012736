"""Copies between layouts (contiguous, concat, ...). They move bytes, whatever the dtype.

Dense copies move 16 bytes at once, or the longest words that fit. If the innermost dimensions of the two sides differ,
a tile goes through shared memory, so that reads and writes are both coalesced; channels-last to channels-first is such
a copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.elementwise import outer, over_elements
from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.element_groups import copy_strided
from minidl.kernels.cuda.launch import Kernel, Launcher, Launches, View, blocks_of, integers
from minidl.kernels.cuda.layout import RANK, Dimension, is_dense, merged, padded
from minidl.kernels.cuda.tools import GROUP_BYTES, Tools
from minidl.meta import DType, Meta, Parts, Shape, chosen, int32, int64, uint8

TILE = 64  # rows and columns of the tile
# Copies move integers: viewed as another float type some bits would be lost (infinities of bfloat16 as float16).
WORDS = {word.itemsize: word for word in (uint8, DType("uint16", 2, False), int32, int64)}


def transposed(tools: Tools, *, dtype: str, tile: int, threads: int) -> Callable[..., None]:
    """Return a kernel: y[a, b, i, j] = x[a, b, i, j]; neighbours along j are adjacent in y, neighbours along i in x.

    A thread block moves one tile of [i, j]; its threads are a whole number of the tile's rows.
    """
    cuda, word, index = tools.cuda, np.dtype(dtype).type, tools.integer  # blocks are fewer than 2^31
    rows, pitch = threads // tile, tile + 1  # one more column, so that a column touches every bank once
    size, turns = tile * pitch, tile // rows

    def kernel(y: Any, x: Any, n_b: Any, n_i: Any, n_j: Any, y_a: Any, y_b: Any, y_i: Any, y_j: Any,
               x_a: Any, x_b: Any, x_i: Any, x_j: Any) -> None:
        held = cuda.shared.array(size, word)
        across, down = index((n_j + tile - 1) // tile), index((n_i + tile - 1) // tile)
        block = index(cuda.blockIdx.x)
        rest = index(block // across)
        plane = index(rest // down)
        a = index(plane // index(n_b))
        left, top = np.int64(index(block - rest * across)) * tile, np.int64(index(rest - plane * down)) * tile
        b = np.int64(index(plane - a * index(n_b)))
        column, row = cuda.threadIdx.x % tile, cuda.threadIdx.x // tile
        place, step = np.int64(a) * x_a + b * x_b + (top + column) * x_i + (left + row) * x_j, rows * x_j
        # Remaining rows of the tile from this one on; signed, because it is negative beyond the edge.
        at, room = index(row * pitch + column), np.int32(min(n_j - left - row, tile))
        if top + column < n_i:
            for k in range(turns):
                if k * rows < room:
                    held[at + k * rows * pitch] = x[place]
                place += step
        cuda.syncthreads()
        place, step = np.int64(a) * y_a + b * y_b + (top + row) * y_i + (left + column) * y_j, rows * y_i
        at, room = index(column * pitch + row), np.int32(min(n_i - top - row, tile))
        if left + column < n_j:
            for k in range(turns):
                if k * rows < room:
                    y[place] = held[at + k * rows]
                place += step
    return kernel


def copy(builder: Launches, y: View, x: View) -> None:
    """Add launches: y = x; both have one shape and dtype, and no memory in common."""
    if y.size == 0:
        return
    dims = merged(y.shape, y.strides, x.strides)
    if is_dense(dims):
        over_elements(builder, *_long_words(y.size, y, x), form="a")
        return
    if is_on("copies") and copy_strided(builder, *_as_words(dims, y, x)):
        return
    y, x = (replace(a, dtype=WORDS[a.dtype.itemsize]) for a in (y, x))
    innermost = min(range(len(dims)), key=lambda d: dims[d][2])  # the dimension with the smallest stride in x
    # Narrow tiles are mostly idle: such a copy goes element by element.
    if innermost == len(dims) - 1 or dims[innermost][2] == 0 or min(dims[innermost][0], dims[-1][0]) < TILE // 4:
        over_elements(builder, y, x, form="a")
        return
    dims.append(dims.pop(innermost))
    dims[-2], dims[-1] = dims[-1], dims[-2]
    inner = padded(dims[-RANK:], RANK, 2)
    (n_a, y_a, x_a), (n_b, y_b, x_b), (n_i, y_i, x_i), (n_j, y_j, x_j) = inner
    blocks = n_a * n_b * blocks_of(n_i, TILE) * blocks_of(n_j, TILE)
    for y_at, x_at in outer(dims):
        builder.launch(transposed, blocks, y.moved(y_at), x.moved(x_at), *integers(
            n_b, n_i, n_j, y_a, y_b, y_i, y_j, x_a, x_b, x_i, x_j), dtype=y.dtype.name, tile=TILE,
            threads=max(TILE, launch.THREADS // TILE * TILE))


def _as_words(dims: list[Dimension], y: View, x: View) -> tuple[list[Dimension], View, View]:
    """Return (dims, y, x) with elements replaced by words of 4 bytes, if both sides consist of such; else unchanged."""
    count = max(1, 4 // y.dtype.itemsize)
    halves = count > 1 and dims[-1][1:] == (1, 1) and not dims[-1][0] % count and not any(
        step % count for d in dims[:-1] for step in d[1:])
    if halves:
        dims = [(n, *(s // count for s in steps)) for n, *steps in dims[:-1]] + [(dims[-1][0] // count, 1, 1)]
    if halves or count == 1 and y.dtype.itemsize == 4:
        y, x = (replace(a, dtype=int32) for a in (y, x))
    return dims, y, x


def _long_words(size: int, *views: View) -> tuple[View, ...]:
    """Return dense views of ``size`` elements as runs of the longest words that fit their bytes and alignment."""
    itemsize = views[0].dtype.itemsize
    word = next(w for w in (GROUP_BYTES, 8, 4, 2, 1)
                if size * itemsize % w == 0 and all(a.pointer.offset % w == 0 for a in views))
    word = 4 if word == GROUP_BYTES else word  # ``over_elements`` moves these as groups
    dtype = WORDS[word]
    return tuple(View(a.pointer, dtype, (size * itemsize // word,), (1,)) for a in views)


def zero(builder: Launches, y: View) -> None:
    """Add launches: y = 0."""
    over_elements(builder, replace(y, dtype=WORDS[y.dtype.itemsize]), form="number")


def concat(builder: Launches, y: View, *xs: View, axis: int) -> None:
    """Add launches: y = the tensors ``xs`` concatenated along ``axis``."""
    start = 0
    for x in xs:
        stop = start + x.shape[axis]
        copy(builder, y.narrow(axis, start, stop), x)
        start = stop


def narrow_grad(builder: Launches, dx: View, dy: View, *, shape: Shape, axis: int, start: int) -> None:
    """Add launches: dx = dy at ``start`` and following along ``axis``, as many as dy has; zeros elsewhere."""
    stop = start + dy.shape[axis]
    zero(builder, dx.narrow(axis, 0, start))
    copy(builder, dx.narrow(axis, start, stop), dy)
    zero(builder, dx.narrow(axis, stop, shape[axis]))


def index_grad(builder: Launches, dx: View, dy: View, onto: View | None = None, *, shape: Shape, parts: Parts,
               in_place: bool = False) -> None:
    """Add launches: dx = dy at the selected part, zeros elsewhere; with ``onto``, dx = onto plus dy at that part.
    parts: as in ``meta.chosen``. in_place: True if dx has the bytes of ``onto``."""
    if onto is None:
        zero(builder, dx)
    elif not in_place:
        copy(builder, dx, onto)
    part_shape, strides, distance = chosen(dx.shape, dx.strides, parts)
    target = replace(dx.moved(distance), shape=part_shape, strides=strides)
    if onto is None:
        copy(builder, target, dy)
    else:
        over_elements(builder, target, target, dy, formula="add", form="a, b")


class IndexGradKernel(Kernel):
    """The ``index_grad`` kernel, which skips the copy of ``onto`` if dx shares its bytes."""

    def issue(self, launcher: Launcher, addresses: Sequence[int], metas: Sequence[Meta], attrs: dict[str, Any],
              workspace: int = 0) -> None:
        in_place = len(addresses) > 2 and addresses[0] == addresses[2]
        super().issue(launcher, addresses, metas, {**attrs, "in_place": in_place}, workspace)


KERNELS: dict[str, Kernel] = {
    "contiguous": Kernel(copy), "concat": Kernel(concat), "narrow_grad": Kernel(narrow_grad),
    "index_grad": IndexGradKernel(index_grad),
}
