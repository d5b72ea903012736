"""Convolutions as matrix products (im2col) in a bounded column buffer, and the table of their algorithms.

The output rows are cut into tiles, so that the columns of a tile stay in the cache; for each tile, in order:

    conv2d   columns(x) -> y_n = w columns_n                for every image n
    dgrad    columns_n = w^T dy_n -> add the columns to dx
    wgrad    columns(x) -> dw = dw + dy_n columns_n^T       for every image n, in order

Variants differ in how many images share a turn ("batch": all, "tile" and "scratch": as many as fit the buffer, at
least one) and in where the columns lie. Cuts and products are the same for all of them, so they give the same bits:
one class. A 1x1 window of stride 1 without padding reads its operand in place and needs no columns.
Knows arrays; no tensors, no devices.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minidl.kernels.cpu.blocks import Array
from minidl.kernels.cpu.linear import add_product
from minidl.kernels.cpu.windows import Pair, taps
from minidl.meta import Meta, Shape
from minidl.op import Attrs

# Larger tiles gain little, smaller ones pay for packing the weights again (measured from 0.5 to 4 MiB).
COLUMN_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class CpuAlgorithm:
    """One way to run a convolution.

    workspace      ``(inputs, outputs, attrs) -> bytes``
    relative_time  1.0 for the preferred one
    run            ``(*outputs, *inputs, workspace=<uint8 array of that many bytes>, **attrs)``
    """

    name: str
    bits_class: str
    workspace: Callable[[Sequence[Meta], Sequence[Meta], Attrs], int]
    relative_time: float
    run: Callable[..., None]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """A convolution's extents: x [N, C, H, W], w [K, C, R, S], y [N, K, P, Q]."""

    x: Shape
    w: Shape
    y: Shape
    stride: Pair
    padding: Pair
    itemsize: int

    @property
    def pointwise(self) -> bool:
        return self.w[2:] == (1, 1) == self.stride and self.padding == (0, 0)

    @property
    def tile_rows(self) -> int:
        """Output rows of a tile; at least one. A matter of shapes alone: never of the variant or of free memory."""
        _, c, r, s = self.w
        row_bytes = c * r * s * self.y[3] * self.itemsize
        return min(self.y[2], max(1, COLUMN_BYTES // row_bytes))

    def tiles(self) -> Iterator[tuple[int, int]]:
        rows = self.tile_rows
        for start in range(0, self.y[2], rows):
            yield start, min(start + rows, self.y[2])

    def column_bytes(self) -> int:
        """Of one image's tile."""
        _, c, r, s = self.w
        return 0 if self.pointwise else c * r * s * self.tile_rows * self.y[3] * self.itemsize

    def turn(self, *, whole_batch: bool) -> int:
        """Images that share a turn."""
        n = self.x[0]
        return n if whole_batch or self.pointwise else min(n, max(1, COLUMN_BYTES // self.column_bytes()))

    def columns(self, workspace: Array, dtype: Any, images: int, rows: int) -> Array:
        """[images, C, R, S, rows, Q] at the start of the workspace."""
        shape = (images, *self.w[1:], rows, self.y[3])
        return workspace.view(dtype)[:int(np.prod(shape))].reshape(shape)

    def gather(self, columns: Array, x: Array, rows: tuple[int, int]) -> None:
        """columns[n, c, r, s, p, q] = x[n, c, p * stride + r - padding, q * stride + s - padding], 0 outside."""
        for tap in taps(self.x[2:], self.y[2:], self.w[2:], self.stride, self.padding, rows=rows):
            plane = columns[:, :, tap.r, tap.s]
            plane[:, :, :tap.rows.start] = 0
            plane[:, :, tap.rows.stop:] = 0
            plane[:, :, tap.rows, :tap.columns.start] = 0
            plane[:, :, tap.rows, tap.columns.stop:] = 0
            plane[:, :, tap.rows, tap.columns] = x[:, :, tap.in_rows, tap.in_columns]

    def scatter(self, dx: Array, columns: Array, rows: tuple[int, int]) -> None:
        """The adjoint of gather: add every column entry to the element that it came from, tap after tap."""
        for tap in taps(self.x[2:], self.y[2:], self.w[2:], self.stride, self.padding, rows=rows):
            dx[:, :, tap.in_rows, tap.in_columns] += columns[:, :, tap.r, tap.s, tap.rows, tap.columns]


def _matrices(a: Array) -> Iterator[Array]:
    """[N, K, P, Q] as N matrices [K, P * Q]; copies one image at a time where rows do not follow each other."""
    for image in a:
        yield image.reshape(image.shape[0], -1)


def _turns(g: _Geometry, whole_batch: bool) -> Iterator[slice]:
    """Slices of the batch that share a turn."""
    n, images = g.x[0], g.turn(whole_batch=whole_batch)
    for start in range(0, n, images):
        yield slice(start, min(start + images, n))


def _fprop(y: Array, x: Array, w: Array, b: Array | None = None, *, whole_batch: bool, workspace: Array | None,
           stride: Pair, padding: Pair) -> None:
    g = _Geometry(x.shape, w.shape, y.shape, stride, padding, x.itemsize)
    weights = w.reshape(w.shape[0], -1)
    if g.pointwise:
        for x_n, y_n in zip(_matrices(x), _matrices(y), strict=True):
            np.matmul(weights, x_n, out=y_n)
    else:
        buffer = _buffer(g, workspace)
        for turn in _turns(g, whole_batch):
            for rows in g.tiles():
                columns = g.columns(buffer, x.dtype, turn.stop - turn.start, rows[1] - rows[0])
                g.gather(columns, x[turn], rows)
                matrices = columns.reshape(len(columns), weights.shape[1], -1)
                for y_n, columns_n in zip(_matrices_of_rows(y[turn], rows), matrices, strict=True):
                    np.matmul(weights, columns_n, out=y_n)
    if b is not None:
        y += b[:, None, None]


def _dgrad(dx: Array, dy: Array, w: Array, onto: Array | None = None, *, whole_batch: bool, workspace: Array | None,
           stride: Pair, padding: Pair, **_: Any) -> None:
    g = _Geometry(dx.shape, w.shape, dy.shape, stride, padding, dy.itemsize)
    weights = w.reshape(w.shape[0], -1).T
    if g.pointwise:
        for n, (dy_n, dx_n) in enumerate(zip(_matrices(dy), _matrices(dx), strict=True)):
            if onto is None:
                np.matmul(weights, dy_n, out=dx_n)
            else:  # dx may lie over onto
                np.add(onto[n].reshape(dx_n.shape), weights @ dy_n, out=dx_n)
        return
    buffer = _buffer(g, workspace)
    np.copyto(dx, 0 if onto is None else onto)
    for turn in _turns(g, whole_batch):
        for rows in g.tiles():
            columns = g.columns(buffer, dy.dtype, turn.stop - turn.start, rows[1] - rows[0])
            matrices = columns.reshape(len(columns), weights.shape[0], -1)
            for dy_n, columns_n in zip(_matrices_of_rows(dy[turn], rows), matrices, strict=True):
                np.matmul(weights, dy_n, out=columns_n)
            g.scatter(dx[turn], columns, rows)


def _wgrad(dw: Array, dy: Array, x: Array, *, whole_batch: bool, workspace: Array | None, stride: Pair, padding: Pair,
           **_: Any) -> None:
    g = _Geometry(x.shape, dw.shape, dy.shape, stride, padding, x.itemsize)
    gradient = dw.reshape(dw.shape[0], -1)
    gradient.fill(0)
    if g.pointwise:
        for dy_n, x_n in zip(_matrices(dy), _matrices(x), strict=True):
            add_product(gradient, dy_n, x_n.T)
        return
    buffer = _buffer(g, workspace)
    # Tiles outside: with turns outside, the order of the sum would depend on how many images share one.
    for rows in g.tiles():
        for turn in _turns(g, whole_batch):
            columns = g.columns(buffer, x.dtype, turn.stop - turn.start, rows[1] - rows[0])
            g.gather(columns, x[turn], rows)
            matrices = columns.reshape(len(columns), gradient.shape[1], -1)
            for dy_n, columns_n in zip(_matrices_of_rows(dy[turn], rows), matrices, strict=True):
                add_product(gradient, dy_n, columns_n.T)


def _matrices_of_rows(a: Array, rows: tuple[int, int]) -> Iterator[Array]:
    """Rows [rows[0], rows[1]) of each image as a matrix [K, rows * Q]: a view where the image is contiguous."""
    start, stop = (row * a.shape[3] for row in rows)
    for matrix in _matrices(a):
        yield matrix[:, start:stop]


def _buffer(g: _Geometry, workspace: Array | None) -> Array:
    """The workspace given, or one of about COLUMN_BYTES outside the arena."""
    return np.empty(g.column_bytes() * g.turn(whole_batch=False), np.uint8) if workspace is None else workspace


def _outside(kernel: Callable[..., None]) -> Callable[..., None]:
    """The kernel with its columns outside the arena."""
    def run(*arrays: Array, workspace: Array | None = None, **attrs: Any) -> None:
        kernel(*arrays, whole_batch=False, workspace=None, **attrs)
    return run


def _direct(name: str) -> Callable[..., None]:
    def run(*arrays: Array, workspace: Array | None = None, **attrs: Any) -> None:
        from minidl.kernels.cpu import direct  # compiles with Numba: not loaded unless it is needed
        getattr(direct, name)(*arrays, **attrs)
    return run


def _geometry(op_name: str, inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> _Geometry:
    first, second, out = inputs[0], inputs[1], outputs[0]
    x, w, y = {"conv2d": (first, second, out), "conv2d_dgrad": (out, second, first),
               "conv2d_wgrad": (second, out, first)}[op_name]
    return _Geometry(x.shape, w.shape, y.shape, attrs["stride"], attrs["padding"], out.dtype.itemsize)


def _algorithms(op_name: str, kernel: Callable[..., None]) -> tuple[CpuAlgorithm, ...]:
    def columns(whole_batch: bool) -> Callable[[Sequence[Meta], Sequence[Meta], Attrs], int]:
        def nbytes(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> int:
            g = _geometry(op_name, inputs, outputs, attrs)
            return g.column_bytes() * g.turn(whole_batch=whole_batch)
        return nbytes

    def nothing(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> int:
        return 0
    # Infinities and NaN are values here as in every kernel, not warnings.
    quiet = np.errstate(all="ignore")
    # Times as measured on 2 cores: the batch at once wins up to 1.3 for few channels and loses as much elsewhere.
    # "scratch" takes the same time as "tile", but its columns are not in the budget: a last resort of its class.
    return (CpuAlgorithm("tile", "im2col", columns(False), 1.0, quiet(partial(kernel, whole_batch=False))),
            CpuAlgorithm("batch", "im2col", columns(True), 1.0, quiet(partial(kernel, whole_batch=True))),
            CpuAlgorithm("scratch", "im2col", nothing, 1.0, quiet(_outside(kernel))),
            CpuAlgorithm("direct", "direct", nothing, 40.0, quiet(_direct(op_name))))


CONVOLUTIONS: dict[str, tuple[CpuAlgorithm, ...]] = {
    "conv2d": _algorithms("conv2d", _fprop),
    "conv2d_dgrad": _algorithms("conv2d_dgrad", _dgrad),
    "conv2d_wgrad": _algorithms("conv2d_wgrad", _wgrad),
}
