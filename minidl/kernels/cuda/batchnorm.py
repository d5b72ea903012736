"""Batch normalisation of [N, C, ...], alone or with the addition and the ReLU after it, both ways.

A thread stays in one channel, whose constants it finds once, and walks over images and pixels: every element is read
once and written once. Layout is a matter of strides. Channels-last is fast at any size: 32 channels side by side.
Channels-first is as fast where planes are large, and slower below some hundred pixels, where runs are short.

Sums are accumulated in float32 (float64 of float64) by fixed trees. Statistics do not cancel: each thread counts from
its first value, and parts are united by the formula of Chan, Golub & LeVeque (1979).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch, sums
from minidl.kernels.cuda.batchnorm_maps import input_gradient, merge_statistics, normalise, update_running
from minidl.kernels.cuda.batchnorm_rows import (
    channel_gradient_sums,
    channel_statistics,
    channels_gradient,
    normalise_channels,
)
from minidl.kernels.cuda.batchnorm_sums import gradient_sums, stats, united_gradients, united_stats
from minidl.kernels.cuda.launch import Kernel, Number, Planner, View, blocks_of, compute, integers
from minidl.kernels.cuda.layout import power_of_two
from minidl.kernels.cuda.shape import copy
from minidl.kernels.cuda.sums import Grid, Split, few_threads, grid, split
from minidl.kernels.cuda.tools import GROUP_BYTES, GROUPED


def _channels(planner: Planner, *maps: View, reduces: bool) -> tuple[tuple[View, ...], Grid, tuple[np.int64, ...]]:
    """The feature maps (copied if they have too many dimensions to walk over), the grid and its arguments."""
    def parted() -> Split:
        axes = tuple(i for i in range(len(maps[0].shape)) if i != 1)
        return split(maps[0].shape, axes, *[a.strides for a in maps])
    parts = parted()
    if not parts.fits():
        first = 0 if reduces else 1  # the output stays where it is: it is contiguous
        dense = [planner.scratch(a.shape, a.dtype.name) for a in maps[first:]]
        for to, origin in zip(dense, maps[first:], strict=True):
            copy(planner, to, origin)
        maps = (*maps[:first], *dense)
        parts = parted()
    g = grid(parts, reduces=reduces)
    return maps, g, (*integers(g.kept, g.count, g.length), *parts.arguments(g.threads // g.columns))


@dataclass(frozen=True)
class Rows:
    """How maps lie that are rows of groups of ``width`` channels, 16 bytes each (``batchnorm_rows``), and the grid."""

    width: int
    groups: int
    grid: Grid

    @property
    def arguments(self) -> tuple[np.int64, ...]:
        """Groups of a row, rows, rows of a slab."""
        return integers(self.groups, self.grid.count, self.grid.length)

    @property
    def options(self) -> dict[str, Any]:
        """What kernels are specialised by."""
        return {"width": self.width, "columns": self.grid.columns, "threads": self.grid.threads}


def _rows(*maps: View, reduces: bool) -> Rows | None:
    """The maps as rows of groups; None if any lies otherwise, or its rows are not whole groups at whole places."""
    first = maps[0]
    width = GROUP_BYTES // first.dtype.itemsize
    if first.dtype.name not in GROUPED or any(a.dtype is not first.dtype or a.pointer.offset % GROUP_BYTES
                                              for a in maps):
        return None
    parts = split(first.shape, tuple(i for i in range(len(first.shape)) if i != 1), *[a.strides for a in maps])
    kept, count = parts.sizes
    if kept % width or count < 2 or parts.kept != [(kept, *[1] * len(maps))] or parts.summed != [
            (count, *[kept] * len(maps))]:
        return None
    groups = kept // width
    threads, columns = launch.THREADS, min(sums.COLUMNS, power_of_two(groups), launch.THREADS)
    lanes, tiles = threads // columns, blocks_of(groups, columns)
    slabs = blocks_of(count, lanes * sums.DEPTH)
    if reduces:
        slabs = max(1, min(blocks_of(sums.BLOCKS, tiles), slabs))
    length = blocks_of(count, slabs)
    return Rows(width, groups, Grid(groups, count, columns, blocks_of(count, length), length, threads))


def _steps(*vectors: View) -> tuple[np.int64, ...]:
    return integers(*[v.strides[0] for v in vectors])


def _number(x: View, value: float) -> np.generic:
    number: np.generic = np.dtype(compute(x.dtype)).type(value)
    return number


def _batch_norm_stats(planner: Planner, mean: View, var: View, x: View) -> None:
    """Mean and biased variance of each channel."""
    lying = _rows(x, reduces=True)
    if lying is not None:
        g, kept = lying.grid, x.shape[1]
        to = (mean, var) if g.slabs == 1 else tuple(planner.scratch((g.slabs, kept), compute(x.dtype)) for _ in "12")
        planner.launch(channel_statistics, g.blocks, *to, x, *lying.arguments, dtype=x.dtype.name, direct=g.slabs == 1,
                       **lying.options)
        if g.slabs > 1:
            planner.launch(united_stats, kept, mean, var, *to, *integers(kept, g.count, g.length, g.slabs),
                           dtype=mean.dtype.name, threads=few_threads(g.slabs))
        return
    (x,), g, arguments = _channels(planner, x, reduces=True)
    options = {**g.options, "dtype": x.dtype.name}
    if g.slabs == 1:
        planner.launch(stats, g.blocks, mean, var, x, *arguments, direct=True, **options)
        return
    levels, deviations = (planner.scratch((g.slabs, g.kept), compute(x.dtype)) for _ in range(2))
    planner.launch(stats, g.blocks, levels, deviations, x, *arguments, direct=False, **options)
    planner.launch(united_stats, g.kept, mean, var, levels, deviations,
                   *integers(g.kept, g.count, g.length, g.slabs), dtype=mean.dtype.name, threads=few_threads(g.slabs))


def _reduce(planner: Planner, dgamma: View, dbeta: View, dy: View, x: View, mean: View, var: View, gamma: View,
            beta: View, *, eps: float, relu: bool) -> None:
    lying, vectors, small = _rows(x, dy, reduces=True), (mean, var, gamma, beta), _number(x, eps)
    if lying is not None:
        g, kept = lying.grid, x.shape[1]
        to = (dgamma, dbeta) if g.slabs == 1 else tuple(planner.scratch((g.slabs, kept), compute(x.dtype))
                                                        for _ in "12")
        planner.launch(channel_gradient_sums, g.blocks, *to, dy, x, *vectors, small, *_steps(*vectors),
                       *lying.arguments, dtype=x.dtype.name, relu=relu, direct=g.slabs == 1, **lying.options)
        if g.slabs > 1:
            planner.launch(united_gradients, kept, dgamma, dbeta, *to, var, small, *_steps(var),
                           *integers(kept, g.slabs), dtype=var.dtype.name, threads=few_threads(g.slabs))
        return
    (x, dy), g, arguments = _channels(planner, x, dy, reduces=True)
    options = {**g.options, "dtype": x.dtype.name, "relu": relu}
    if g.slabs == 1:
        planner.launch(gradient_sums, g.blocks, dgamma, dbeta, dy, x, *vectors, small, *_steps(*vectors), *arguments,
                       direct=True, **options)
        return
    slopes, levels = (planner.scratch((g.slabs, g.kept), compute(x.dtype)) for _ in range(2))
    planner.launch(gradient_sums, g.blocks, slopes, levels, dy, x, *vectors, small, *_steps(*vectors), *arguments,
                   direct=False, **options)
    planner.launch(united_gradients, g.kept, dgamma, dbeta, slopes, levels, var, small, *_steps(var),
                   *integers(g.kept, g.slabs), dtype=var.dtype.name, threads=few_threads(g.slabs))


def _batch_norm_grad_reduce(planner: Planner, dgamma: View, dbeta: View, dy: View, x: View, mean: View, var: View, *,
                            eps: float) -> None:
    """dbeta = sum dy, dgamma = sum dy (x - mean) / sqrt(var + eps), over each channel."""
    _reduce(planner, dgamma, dbeta, dy, x, mean, var, mean, mean, eps=eps, relu=False)


def _batch_norm_relu_grad_reduce(planner: Planner, dgamma: View, dbeta: View, dy: View, x: View, gamma: View,
                                 beta: View, mean: View, var: View, *, eps: float) -> None:
    """batch_norm_grad_reduce of dy where the normalised x is positive, else of 0."""
    _reduce(planner, dgamma, dbeta, dy, x, mean, var, gamma, beta, eps=eps, relu=True)


def _apply(planner: Planner, y: View, x: View, residual: View, gamma: View, beta: View, mean: View, var: View, *,
           eps: float, add: bool, relu: bool) -> None:
    lying = _rows(y, x, residual, reduces=False)
    if lying is not None:
        vectors = (mean, var, gamma, beta)
        planner.launch(normalise_channels, lying.grid.blocks, y, x, residual, *vectors, _number(x, eps),
                       *_steps(*vectors), *lying.arguments, dtype=x.dtype.name, add=add, relu=relu, **lying.options)
        return
    (y, x, residual), g, arguments = _channels(planner, y, x, residual, reduces=False)
    vectors = (mean, var, gamma, beta)
    planner.launch(normalise, g.blocks, y, x, residual, *vectors, _number(x, eps), *_steps(*vectors), *arguments,
                   dtype=x.dtype.name, add=add, relu=relu, **g.options)


def _batch_norm(planner: Planner, y: View, x: View, *vectors: View, eps: float, training: bool) -> None:
    """(x - mean) / sqrt(var + eps) * gamma + beta"""
    _apply(planner, y, x, x, *vectors, eps=eps, add=False, relu=False)


def _batch_norm_relu(planner: Planner, y: View, x: View, *vectors: View, eps: float, training: bool) -> None:
    """The positive part of batch_norm."""
    _apply(planner, y, x, x, *vectors, eps=eps, add=False, relu=True)


def _batch_norm_add_relu(planner: Planner, y: View, x: View, residual: View, *vectors: View, eps: float,
                         training: bool) -> None:
    """The positive part of batch_norm + residual."""
    _apply(planner, y, x, residual, *vectors, eps=eps, add=True, relu=True)


def _gradient(planner: Planner, dx: View, dy: View, x: View, gamma: View, beta: View, mean: View, var: View,
              dgamma: View, dbeta: View, *, eps: float, training: bool, relu: bool) -> None:
    lying = _rows(dx, dy, x, reduces=False)
    if lying is not None:
        vectors = (mean, var, gamma, beta, dgamma, dbeta)
        share = _number(x, 1.0 / lying.grid.count if training else 0.0)
        planner.launch(channels_gradient, lying.grid.blocks, dx, dy, x, *vectors, _number(x, eps), share,
                       *_steps(*vectors), *lying.arguments, dtype=x.dtype.name, relu=relu, **lying.options)
        return
    (dx, dy, x), g, arguments = _channels(planner, dx, dy, x, reduces=False)
    vectors = (mean, var, gamma, beta, dgamma, dbeta)
    # Without batch statistics the gradient does not depend on x: what is subtracted vanishes.
    share = _number(x, 1.0 / g.count if training else 0.0)
    planner.launch(input_gradient, g.blocks, dx, dy, x, *vectors, _number(x, eps), share, *_steps(*vectors),
                   *arguments, dtype=x.dtype.name, relu=relu, **g.options)


def _batch_norm_grad(planner: Planner, dx: View, dy: View, x: View, gamma: View, mean: View, var: View, dgamma: View,
                     dbeta: View, *, eps: float, training: bool) -> None:
    """gamma rstd (dy - dbeta / m - xhat dgamma / m) with m values a channel; gamma rstd dy if not training."""
    _gradient(planner, dx, dy, x, gamma, gamma, mean, var, dgamma, dbeta, eps=eps, training=training, relu=False)


def _batch_norm_relu_grad(planner: Planner, dx: View, dy: View, x: View, gamma: View, beta: View, mean: View,
                          var: View, dgamma: View, dbeta: View, *, eps: float, training: bool) -> None:
    """batch_norm_grad of dy where the normalised x is positive, else of 0."""
    _gradient(planner, dx, dy, x, gamma, beta, mean, var, dgamma, dbeta, eps=eps, training=training, relu=True)


def _batch_norm_update(planner: Planner, *vectors: View) -> None:
    """Move the running statistics towards those of the batch; the variance unbiased by count / (count - 1)."""
    kind, n = compute(vectors[0].dtype), vectors[0].shape[0]
    planner.launch(update_running, blocks_of(n, launch.THREADS), *vectors, Number("momentum", kind),
                   Number("unbiased", kind), *integers(n), *_steps(*vectors), dtype=vectors[0].dtype.name)


def _batch_norm_merge(planner: Planner, *vectors: View) -> None:
    """Statistics of ``count`` and of ``other`` examples as those of all of them."""
    kind, n = compute(vectors[0].dtype), vectors[0].shape[0]
    planner.launch(merge_statistics, blocks_of(n, launch.THREADS), *vectors, Number("share", kind), *integers(n),
                   *_steps(*vectors), dtype=vectors[0].dtype.name)


KERNELS: dict[str, Kernel] = {
    "batch_norm_stats": Kernel(_batch_norm_stats), "batch_norm": Kernel(_batch_norm),
    "batch_norm_relu": Kernel(_batch_norm_relu), "batch_norm_add_relu": Kernel(_batch_norm_add_relu),
    "batch_norm_grad_reduce": Kernel(_batch_norm_grad_reduce), "batch_norm_grad": Kernel(_batch_norm_grad),
    "batch_norm_relu_grad_reduce": Kernel(_batch_norm_relu_grad_reduce),
    "batch_norm_relu_grad": Kernel(_batch_norm_relu_grad),
    "batch_norm_update_": Kernel(_batch_norm_update, lambda momentum, count: {
        "momentum": momentum, "unbiased": momentum * count / (count - 1)}),
    "batch_norm_merge": Kernel(_batch_norm_merge, lambda count, other: {"share": other / (count + other)}),
}
