"""Batch normalisation of [N, C, ...], alone or fused with a following addition and ReLU, on NumPy arrays.

Sums over a channel, and the constants derived from them, are accumulated in float64 and rounded once. The fused kernels
do the same operations in the same order as separate calls, so they give the same bits.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numba import prange

from minidl.kernels import scalar
from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled
from minidl.kernels.cpu.half import is_half
from minidl.kernels.cpu.sums import total, total_and_slope, total_square

GROUP = 1 << 15  # elements of a channel that are read twice: they stay in a core's own cache
STRIP = 1 << 11  # elements of a gradient that are masked at a time


# Loops over [N, C, S] -----------------------------------------------------------------------------------------------
@PieceLoop
def _stats(means: Array, squares: Array, x: Array, seen: int) -> None:
    """Add the images of x to each channel's mean and sum of squared deviations (float64), of ``seen`` values so far.

    The mean of each group of values is computed first, then the deviations from it, so that nothing cancels. Groups are
    merged by the formula of Chan, Golub & LeVeque (1979).
    """
    n, c, s = x.shape
    images, length = max(1, GROUP // s), min(s, GROUP)
    for channel in prange(c):
        count, mean, square = float(seen), means[channel], squares[channel]
        for first in range(0, n, images):
            last = min(n, first + images)
            for start in range(0, s, length):
                stop = min(s, start + length)
                added = float((last - first) * (stop - start))
                part = 0.0
                for image in range(first, last):
                    part += total(x[image, channel, start:stop])
                part /= added
                part_square = 0.0
                for image in range(first, last):
                    part_square += total_square(x[image, channel, start:stop], part)
                gap = part - mean
                share = added / (count + added)
                mean += gap * share
                square += part_square + gap * gap * (count * share)
                count += added
        means[channel], squares[channel] = mean, square


@compiled
def _normed(x: Any, centre: Any, factor: Any, offset: Any) -> Any:
    return (x - centre) * factor + offset


@PieceLoop
def _apply(y: Array, x: Array, centre: Array, factor: Array, offset: Array) -> None:
    for plane in prange(x.shape[0] * x.shape[1]):
        n, c = plane // x.shape[1], plane % x.shape[1]
        centre_c, factor_c, offset_c = centre[c], factor[c], offset[c]
        for i in range(x.shape[2]):
            y[n, c, i] = _normed(x[n, c, i], centre_c, factor_c, offset_c)


@PieceLoop
def _apply_relu(y: Array, x: Array, centre: Array, factor: Array, offset: Array) -> None:
    for plane in prange(x.shape[0] * x.shape[1]):
        n, c = plane // x.shape[1], plane % x.shape[1]
        centre_c, factor_c, offset_c = centre[c], factor[c], offset[c]
        for i in range(x.shape[2]):
            y[n, c, i] = scalar.relu(_normed(x[n, c, i], centre_c, factor_c, offset_c))


@PieceLoop
def _apply_add_relu(y: Array, x: Array, residual: Array, centre: Array, factor: Array, offset: Array) -> None:
    for plane in prange(x.shape[0] * x.shape[1]):
        n, c = plane // x.shape[1], plane % x.shape[1]
        centre_c, factor_c, offset_c = centre[c], factor[c], offset[c]
        for i in range(x.shape[2]):
            y[n, c, i] = scalar.relu(_normed(x[n, c, i], centre_c, factor_c, offset_c) + residual[n, c, i])


@PieceLoop
def _reduce(levels: Array, slopes: Array, dy: Array, x: Array, centre: Array) -> None:
    """Add each channel's sum of dy to ``levels`` and its sum of dy * (x - centre) to ``slopes``, [C], in float64."""
    for c in prange(x.shape[1]):
        level, slope = 0.0, 0.0
        for n in range(x.shape[0]):
            for start in range(0, x.shape[2], STRIP):
                more, product = total_and_slope(dy[n, c, start:start + STRIP], x[n, c, start:start + STRIP], centre[c])
                level += more
                slope += product
        levels[c] += level
        slopes[c] += slope


@PieceLoop
def _relu_reduce(levels: Array, slopes: Array, dy: Array, x: Array, centre: Array, normal: Array,
                 offset: Array) -> None:
    """Do ``_reduce`` with dy taken as 0 where the ReLU's input, (x - centre) * normal + offset, is not positive.
    levels, slopes: of each channel, to which the sums are added. normal: gamma / sqrt(var + eps)."""
    for c in prange(x.shape[1]):
        level, slope = 0.0, 0.0
        centre_c, normal_c, offset_c = centre[c], normal[c], offset[c]
        masked = np.empty(STRIP, dy.dtype)
        for n in range(x.shape[0]):
            for start in range(0, x.shape[2], STRIP):
                gradient, values = dy[n, c, start:start + STRIP], x[n, c, start:start + STRIP]
                for i in range(values.size):
                    masked[i] = scalar.relu_grad(gradient[i], _normed(values[i], centre_c, normal_c, offset_c))
                more, product = total_and_slope(masked[:values.size], values, centre_c)
                level += more
                slope += product
        levels[c] += level
        slopes[c] += slope


@PieceLoop
def _grad(dx: Array, dy: Array, x: Array, centre: Array, slope: Array, level: Array, factor: Array) -> None:
    for plane in prange(x.shape[0] * x.shape[1]):
        n, c = plane // x.shape[1], plane % x.shape[1]
        centre_c, slope_c, level_c = centre[c], slope[c], level[c]
        factor_c = factor[c]
        for i in range(x.shape[2]):
            dx[n, c, i] = (dy[n, c, i] - _normed(x[n, c, i], centre_c, slope_c, level_c)) * factor_c


@PieceLoop
def _relu_grad(dx: Array, dy: Array, x: Array, centre: Array, slope: Array, level: Array, factor: Array,
               normal: Array, offset: Array) -> None:
    for plane in prange(x.shape[0] * x.shape[1]):
        n, c = plane // x.shape[1], plane % x.shape[1]
        centre_c, slope_c, level_c = centre[c], slope[c], level[c]
        factor_c, normal_c, offset_c = factor[c], normal[c], offset[c]
        for i in range(x.shape[2]):
            masked = scalar.relu_grad(dy[n, c, i], _normed(x[n, c, i], centre_c, normal_c, offset_c))
            dx[n, c, i] = (masked - _normed(x[n, c, i], centre_c, slope_c, level_c)) * factor_c


# Kernels ------------------------------------------------------------------------------------------------------------
def _planes(a: Array) -> Array:
    """Return [N, C, ...] as a view [N, C, S]: all dimensions after the channels become one."""
    return a.reshape(*a.shape[:2], -1)


def _wide(values: Array) -> Array:
    """Return 16-bit floats as float32, other types unchanged."""
    return values.astype(np.float32) if is_half(values.dtype) else values


def _compute_type(x: Array) -> Any:
    return np.float32 if is_half(x.dtype) else x.dtype


def _over_images(kernel: Callable[..., None], out: Array, *inputs: Array, channels: tuple[Array, ...]) -> None:
    """Run a kernel on all images; strided arrays and 16-bit floats are first copied to contiguous wider floats.
    channels: arrays [C], one value for each channel."""
    constants = [values.astype(_compute_type(out)) for values in channels]
    for index in pieces(out.shape, out, *inputs, whole=out.ndim - 1):
        part = out[index]
        results = room(part)
        kernel(part.size, _planes(results), *[_planes(source(a[index])) for a in inputs], *constants)
        settle(part, results)


def _reciprocal_deviation(var: Array, eps: float) -> Array:
    return 1.0 / np.sqrt(var.astype(np.float64) + eps)


def batch_norm_stats(mean: Array, var: Array, x: Array) -> None:
    """Set ``mean`` and ``var`` to the mean and the biased variance of each channel, in one pass over memory."""
    means, squares, seen = np.zeros(x.shape[1]), np.zeros(x.shape[1]), 0
    for index in pieces(x.shape, x, whole=x.ndim - 1):
        part = _planes(source(x[index]))
        _stats(part.size, means, squares, part, seen)
        seen += part.shape[0] * part.shape[2]
    mean[...], var[...] = means, squares / seen


def _affine_constants(gamma: Array, beta: Array, mean: Array, var: Array, eps: float) -> tuple[Array, ...]:
    """Return (centre, factor, offset), with which batch norm is (x - centre) * factor + offset."""
    return mean, gamma * _reciprocal_deviation(var, eps), beta


def batch_norm(y: Array, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, *,
               eps: float, training: bool) -> None:
    """y = (x - mean) / sqrt(var + eps) * gamma + beta, for each channel; ``training`` has no effect."""
    _over_images(_apply, y, x, channels=_affine_constants(gamma, beta, mean, var, eps))


def batch_norm_relu(y: Array, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, *,
                    eps: float, training: bool) -> None:
    """y = relu((x - mean) / sqrt(var + eps) * gamma + beta), for each channel."""
    _over_images(_apply_relu, y, x, channels=_affine_constants(gamma, beta, mean, var, eps))


def batch_norm_add_relu(y: Array, x: Array, residual: Array, gamma: Array, beta: Array, mean: Array, var: Array, *,
                        eps: float, training: bool) -> None:
    """y = relu((x - mean) / sqrt(var + eps) * gamma + beta + residual), for each channel."""
    _over_images(_apply_add_relu, y, x, residual, channels=_affine_constants(gamma, beta, mean, var, eps))


def _sum_gradients(kernel: Callable[..., None], dgamma: Array, dbeta: Array, dy: Array, x: Array, var: Array,
                   eps: float, channels: tuple[Array, ...]) -> None:
    levels, slopes = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    constants = [values.astype(_compute_type(x)) for values in channels]
    for index in pieces(x.shape, dy, x, whole=x.ndim - 1):
        values = _planes(source(x[index]))
        kernel(values.size, levels, slopes, _planes(source(dy[index])), values, *constants)
    dgamma[...], dbeta[...] = slopes * _reciprocal_deviation(var, eps), levels


def batch_norm_grad_reduce(dgamma: Array, dbeta: Array, dy: Array, x: Array, mean: Array, var: Array, *,
                           eps: float) -> None:
    """dbeta = sum(dy), dgamma = sum(dy * (x - mean)) / sqrt(var + eps), over each channel."""
    _sum_gradients(_reduce, dgamma, dbeta, dy, x, var, eps, (mean,))


def batch_norm_relu_grad_reduce(dgamma: Array, dbeta: Array, dy: Array, x: Array, gamma: Array, beta: Array,
                                mean: Array, var: Array, *, eps: float) -> None:
    """Do ``batch_norm_grad_reduce`` for a batch norm before a ReLU: dy is 0 where the ReLU's input was not positive."""
    _sum_gradients(_relu_reduce, dgamma, dbeta, dy, x, var, eps, _affine_constants(gamma, beta, mean, var, eps))


def _gradient_constants(x: Array, gamma: Array, mean: Array, var: Array, dgamma: Array, dbeta: Array, eps: float,
                        training: bool) -> tuple[Array, ...]:
    """Return (centre, slope, level, factor): dx of batch norm is (dy - (x - centre) * slope - level) * factor."""
    rstd = _reciprocal_deviation(var, eps)
    # Without batch statistics the gradient does not depend on x: slope and level become 0.
    count = x.shape[0] * prod(x.shape[2:]) if training else np.inf
    return mean, rstd * dgamma / count, dbeta.astype(np.float64) / count, gamma * rstd


def batch_norm_grad(dx: Array, dy: Array, x: Array, gamma: Array, mean: Array, var: Array, dgamma: Array,
                    dbeta: Array, *, eps: float, training: bool) -> None:
    """dx = gamma rstd (dy - (dbeta + (x - mean) rstd dgamma) / m), m values a channel; not training: gamma rstd dy."""
    _over_images(_grad, dx, dy, x, channels=_gradient_constants(x, gamma, mean, var, dgamma, dbeta, eps, training))


def batch_norm_relu_grad(dx: Array, dy: Array, x: Array, gamma: Array, beta: Array, mean: Array, var: Array,
                         dgamma: Array, dbeta: Array, *, eps: float, training: bool) -> None:
    """Do ``batch_norm_grad`` for a batch norm before a ReLU: dy counts as 0 where the ReLU's input was not positive."""
    _, factor, offset = _affine_constants(gamma, beta, mean, var, eps)
    _over_images(_relu_grad, dx, dy, x, channels=(
        *_gradient_constants(x, gamma, mean, var, dgamma, dbeta, eps, training), factor, offset))


def batch_norm_update_(running_mean: Array, running_var: Array, mean: Array, var: Array, *,
                       momentum: float, count: int) -> None:
    """Move the running statistics by ``momentum`` towards the batch's, with the variance var * count / (count - 1)."""
    for running, batch, factor in ((running_mean, mean, 1.0), (running_var, var, count / (count - 1))):
        running[...] = (1.0 - momentum) * _wide(running) + (momentum * factor) * _wide(batch)


def batch_norm_merge(merged_mean: Array, merged_var: Array, mean: Array, var: Array, other_mean: Array,
                     other_var: Array, *, count: int, other: int) -> None:
    """Merge ``count`` examples' mean and var and ``other`` examples' other_mean and other_var into merged ones."""
    share = other / (count + other)
    delta = _wide(other_mean) - _wide(mean)
    both = (1.0 - share) * _wide(var) + share * _wide(other_var) + share * (1.0 - share) * delta * delta
    merged_mean[...] = _wide(mean) + share * delta
    merged_var[...] = both
