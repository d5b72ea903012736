"""Batch normalisation of [N, C, ...], alone or fused with a following addition and ReLU, forward and backward.

A thread stays in one channel, computes its constants once, and walks over images and pixels: every element is read once
and written once. Any layout works, by strides. Channels-last is fast at any size: 32 channels are adjacent.
Channels-first is as fast for large planes, and slower below about a hundred pixels, where runs are short.

Sums are accumulated in float32 (float64 for float64) by fixed trees. Statistics do not cancel: each thread counts from
its first value, and parts are merged by the formula of Chan, Golub & LeVeque (1979).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch, sums
from minidl.kernels.cuda.batchnorm_maps import input_gradient, merge_statistics, normalise, update_running
from minidl.kernels.cuda.batchnorm_sums import gradient_sums, stats, united_gradients, united_stats
from minidl.kernels.cuda.fast import is_on
from minidl.kernels.cuda.fast.batchnorm_rows import (
    channel_gradient_sums,
    channel_statistics,
    channels_gradient,
    normalise_channels,
)
from minidl.kernels.cuda.fast.element_groups import group_width
from minidl.kernels.cuda.launch import Kernel, Launches, Number, View, blocks_of, compute, integers
from minidl.kernels.cuda.shape import copy
from minidl.kernels.cuda.sums import Grid, Split, few_threads, grid, split, tiled


@dataclass(frozen=True)
class MapLayout:
    """The layout of feature maps, which decides the kernels that read them and the kernels' arguments.

    maps       the maps that kernels read and write: copies if the originals have too many dimensions for the kernels
    in_groups  True if they are rows of groups of channels (``batchnorm_rows``); else any layout
    arguments  of the kernel: sizes of the grid and, for general layouts, the strides
    options    for which the kernel is compiled
    """

    maps: tuple[View, ...]
    in_groups: bool
    grid: Grid
    arguments: tuple[np.int64, ...]
    options: dict[str, Any]


def _layout(builder: Launches, *maps: View, reduces: bool) -> MapLayout:
    """Return the maps' layout, in groups of 16 bytes if possible. reduces: the kernel sums over each channel."""
    return _grouped_layout(*maps, reduces=reduces) or _strided_layout(builder, *maps, reduces=reduces)


def _split(*maps: View) -> Split:
    return split(maps[0].shape, tuple(i for i in range(len(maps[0].shape)) if i != 1), *[a.strides for a in maps])


def _strided_layout(builder: Launches, *maps: View, reduces: bool) -> MapLayout:
    parts = _split(*maps)
    if not parts.fits():
        first = 0 if reduces else 1  # the output is contiguous and needs no copy
        dense = [builder.scratch(a.shape, a.dtype.name) for a in maps[first:]]
        for to, origin in zip(dense, maps[first:], strict=True):
            copy(builder, to, origin)
        maps = (*maps[:first], *dense)
        parts = _split(*maps)
    g = grid(parts, reduces=reduces)
    arguments = *integers(g.kept, g.count, g.length), *parts.arguments(g.threads // g.columns)
    return MapLayout(maps, False, g, arguments, g.options)


def _grouped_layout(*maps: View, reduces: bool) -> MapLayout | None:
    """Return a layout in which threads read groups of 16 bytes; None if the maps do not allow it.
    They do if all are dense, aligned to 16 bytes, and have channels that fill whole groups. reduces: the kernel sums
    over each channel."""
    dtype, channels = maps[0].dtype, maps[0].shape[1]
    width = group_width(channels, *maps) if is_on("batchnorm") else 0
    if not width or any(a.dtype is not dtype for a in maps):
        return None
    parts = _split(*maps)
    count = parts.sizes[1]
    if count < 2 or parts.kept != [(channels, *[1] * len(maps))] or parts.summed != [(count, *[channels] * len(maps))]:
        return None
    g = tiled(channels // width, count, sums.COLUMNS, reduces=reduces)
    return MapLayout(maps, True, g, integers(g.kept, g.count, g.length),
                 {"width": width, "columns": g.columns, "threads": g.threads})


def _steps(*vectors: View) -> tuple[np.int64, ...]:
    return integers(*[v.strides[0] for v in vectors])


def _number(x: View, value: float) -> np.generic:
    number: np.generic = np.dtype(compute(x.dtype)).type(value)
    return number


def _of_slabs(builder: Launches, g: Grid, x: View, *results: View) -> tuple[View, ...]:
    """Return a view for each of ``results``, to which a kernel writes the sums of all slabs: scratch [slabs, channels].
    If there is one slab, return ``results``. A slab is a range of a channel's elements; g: the launch grid."""
    return results if g.slabs == 1 else tuple(
        builder.scratch((g.slabs, x.shape[1]), compute(x.dtype)) for _ in results)


def _batch_norm_stats(builder: Launches, mean: View, var: View, x: View) -> None:
    """Add launches: mean, var = the mean and the biased variance of each channel of x."""
    layout = _layout(builder, x, reduces=True)
    g, kept = layout.grid, x.shape[1]
    to = _of_slabs(builder, g, x, mean, var)
    builder.launch(channel_statistics if layout.in_groups else stats, g.blocks, *to, *layout.maps, *layout.arguments,
                   dtype=x.dtype.name, direct=g.slabs == 1, **layout.options)
    if g.slabs > 1:
        builder.launch(united_stats, kept, mean, var, *to, *integers(kept, g.count, g.length, g.slabs),
                       dtype=mean.dtype.name, threads=few_threads(g.slabs))


def _reduce(builder: Launches, dgamma: View, dbeta: View, dy: View, x: View, mean: View, var: View, gamma: View,
            beta: View, *, eps: float, relu: bool) -> None:
    layout, vectors, small = _layout(builder, x, dy, reduces=True), (mean, var, gamma, beta), _number(x, eps)
    (x, dy), g, kept = layout.maps, layout.grid, x.shape[1]
    to = _of_slabs(builder, g, x, dgamma, dbeta)
    builder.launch(channel_gradient_sums if layout.in_groups else gradient_sums, g.blocks, *to, dy, x, *vectors, small,
                   *_steps(*vectors), *layout.arguments, dtype=x.dtype.name, relu=relu, direct=g.slabs == 1,
                   **layout.options)
    if g.slabs > 1:
        builder.launch(united_gradients, kept, dgamma, dbeta, *to, var, small, *_steps(var), *integers(kept, g.slabs),
                       dtype=var.dtype.name, threads=few_threads(g.slabs))


def _batch_norm_grad_reduce(builder: Launches, dgamma: View, dbeta: View, dy: View, x: View, mean: View, var: View, *,
                            eps: float) -> None:
    """Add launches: dbeta = sum(dy), dgamma = sum(dy * (x - mean)) / sqrt(var + eps), over each channel."""
    _reduce(builder, dgamma, dbeta, dy, x, mean, var, mean, mean, eps=eps, relu=False)


def _batch_norm_relu_grad_reduce(builder: Launches, dgamma: View, dbeta: View, dy: View, x: View, gamma: View,
                                 beta: View, mean: View, var: View, *, eps: float) -> None:
    """Do ``_batch_norm_grad_reduce`` for a batch norm before a ReLU: dy is 0 where the ReLU's result was 0."""
    _reduce(builder, dgamma, dbeta, dy, x, mean, var, gamma, beta, eps=eps, relu=True)


def _apply(builder: Launches, y: View, x: View, residual: View, gamma: View, beta: View, mean: View, var: View, *,
           eps: float, add: bool, relu: bool) -> None:
    layout, vectors = _layout(builder, y, x, residual, reduces=False), (mean, var, gamma, beta)
    builder.launch(normalise_channels if layout.in_groups else normalise, layout.grid.blocks, *layout.maps, *vectors,
                   _number(x, eps), *_steps(*vectors), *layout.arguments, dtype=x.dtype.name, add=add, relu=relu,
                   **layout.options)


def _batch_norm(builder: Launches, y: View, x: View, *vectors: View, eps: float, training: bool) -> None:
    """Add launches: y = (x - mean) / sqrt(var + eps) * gamma + beta, for each channel."""
    _apply(builder, y, x, x, *vectors, eps=eps, add=False, relu=False)


def _batch_norm_relu(builder: Launches, y: View, x: View, *vectors: View, eps: float, training: bool) -> None:
    """Add launches: y = relu((x - mean) / sqrt(var + eps) * gamma + beta), for each channel."""
    _apply(builder, y, x, x, *vectors, eps=eps, add=False, relu=True)


def _batch_norm_add_relu(builder: Launches, y: View, x: View, residual: View, *vectors: View, eps: float,
                         training: bool) -> None:
    """Add launches: y = relu((x - mean) / sqrt(var + eps) * gamma + beta + residual), for each channel."""
    _apply(builder, y, x, residual, *vectors, eps=eps, add=True, relu=True)


def _gradient(builder: Launches, dx: View, dy: View, x: View, gamma: View, beta: View, mean: View, var: View,
              dgamma: View, dbeta: View, *, eps: float, training: bool, relu: bool) -> None:
    layout, vectors = _layout(builder, dx, dy, x, reduces=False), (mean, var, gamma, beta, dgamma, dbeta)
    # Without batch statistics the gradient does not depend on x: the subtracted terms are 0.
    share = _number(x, 1.0 / layout.grid.count if training else 0.0)
    builder.launch(channels_gradient if layout.in_groups else input_gradient, layout.grid.blocks, *layout.maps,
                   *vectors, _number(x, eps), share, *_steps(*vectors), *layout.arguments, dtype=x.dtype.name,
                   relu=relu, **layout.options)


def _batch_norm_grad(builder: Launches, dx: View, dy: View, x: View, gamma: View, mean: View, var: View, dgamma: View,
                     dbeta: View, *, eps: float, training: bool) -> None:
    """Add launches: dx = gamma rstd (dy - (dbeta + (x - mean) rstd dgamma) / m); gamma rstd dy if not training."""
    _gradient(builder, dx, dy, x, gamma, gamma, mean, var, dgamma, dbeta, eps=eps, training=training, relu=False)


def _batch_norm_relu_grad(builder: Launches, dx: View, dy: View, x: View, gamma: View, beta: View, mean: View,
                          var: View, dgamma: View, dbeta: View, *, eps: float, training: bool) -> None:
    """Do ``_batch_norm_grad`` for a batch norm before a ReLU: dy counts as 0 where the ReLU's result was 0."""
    _gradient(builder, dx, dy, x, gamma, beta, mean, var, dgamma, dbeta, eps=eps, training=training, relu=True)


def _batch_norm_update(builder: Launches, *vectors: View) -> None:
    """Add launches that move the running statistics towards the batch's, with variance var * count / (count - 1)."""
    kind, n = compute(vectors[0].dtype), vectors[0].shape[0]
    builder.launch(update_running, blocks_of(n, launch.THREADS), *vectors, Number("momentum", kind),
                   Number("unbiased", kind), *integers(n), *_steps(*vectors), dtype=vectors[0].dtype.name)


def _batch_norm_merge(builder: Launches, *vectors: View) -> None:
    """Add launches that merge mean and variance of two parts of a batch, ``count`` and ``other`` examples."""
    kind, n = compute(vectors[0].dtype), vectors[0].shape[0]
    builder.launch(merge_statistics, blocks_of(n, launch.THREADS), *vectors, Number("share", kind), *integers(n),
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
