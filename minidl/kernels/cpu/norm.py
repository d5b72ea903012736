"""Batch and layer normalisation in NumPy: statistics, apply, gradients. Knows arrays; no tensors, no devices.

Sums over a channel or a row are accumulated in float64 and rounded once; so are constants found from them.
"""

from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from minidl.kernels.cpu.blocks import Array, Index, index_blocks


def _pieces(x: Array) -> Iterator[tuple[Index, Index]]:
    """Pieces of x [N, C, ...], each with the index of its channels in a [1, C, 1, ...] array."""
    for index in index_blocks(x.shape, x.itemsize):
        yield index, (slice(None), index[1], *(slice(None),) * (x.ndim - 2))


def _spread(values: Array, x: Array) -> Array:
    """One value a channel, in x's dtype, shaped to broadcast against x."""
    return values.astype(x.dtype).reshape((1, -1) + (1,) * (x.ndim - 2))


def _channel_sums(x: Array, piece: Callable[[Index, Index], Array]) -> Array:
    """Sums over all axes but the second, in float64, of what ``piece`` computes block by block."""
    sums = np.zeros(x.shape[1])
    axes = (0, *range(2, x.ndim))
    for index, channels in _pieces(x):
        sums[index[1]] += np.add.reduce(piece(index, channels), axis=axes, dtype=np.float64)
    return sums


def _reciprocal_deviation(var: Array, eps: float) -> Array:
    return 1.0 / np.sqrt(var.astype(np.float64) + eps)


def batch_norm_stats(mean: Array, var: Array, x: Array) -> None:
    """Mean and biased variance of each channel, in two passes: the second sees deviations, so nothing cancels."""
    count = x.size // x.shape[1]
    mean[...] = _channel_sums(x, lambda index, channels: x[index]) / count
    centre = _spread(mean, x)

    def squares(index: Index, channels: Index) -> Array:
        deviation = x[index] - centre[channels]
        deviation *= deviation
        return deviation
    var[...] = _channel_sums(x, squares) / count


def batch_norm(y: Array, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, *,
               eps: float, training: bool) -> None:
    """(x - mean) / sqrt(var + eps) * gamma + beta"""
    centre, offset = _spread(mean, x), _spread(beta, x)
    factor = _spread(gamma * _reciprocal_deviation(var, eps), x)
    for index, channels in _pieces(x):
        part = y[index]
        np.subtract(x[index], centre[channels], out=part)
        part *= factor[channels]
        part += offset[channels]


def batch_norm_grad_reduce(dgamma: Array, dbeta: Array, dy: Array, x: Array, mean: Array, var: Array, *,
                           eps: float) -> None:
    """dbeta = sum dy, dgamma = sum dy (x - mean) / sqrt(var + eps), over each channel."""
    centre = _spread(mean, x)

    def products(index: Index, channels: Index) -> Array:
        deviation = x[index] - centre[channels]
        deviation *= dy[index]
        return deviation
    dgamma[...] = _channel_sums(x, products) * _reciprocal_deviation(var, eps)
    dbeta[...] = _channel_sums(x, lambda index, channels: dy[index])


def batch_norm_grad(dx: Array, dy: Array, x: Array, gamma: Array, mean: Array, var: Array, dgamma: Array,
                    dbeta: Array, *, eps: float, training: bool) -> None:
    """gamma rstd (dy - dbeta / m - xhat dgamma / m) with m values a channel; gamma rstd dy if not training."""
    rstd = _reciprocal_deviation(var, eps)
    factor = _spread(gamma * rstd, x)
    if not training:
        np.multiply(dy, factor, out=dx)
        return
    count = x.shape[0] * prod(x.shape[2:])
    centre = _spread(mean, x)
    slope = _spread(rstd * dgamma / count, x)  # of the mean over the channel of dy xhat
    level = _spread(dbeta.astype(np.float64) / count, x)
    for index, channels in _pieces(x):
        common = x[index] - centre[channels]  # x is not read again: dx may lie over it, or over dy
        common *= slope[channels]
        common += level[channels]
        part = dx[index]
        np.subtract(dy[index], common, out=part)
        part *= factor[channels]


def batch_norm_update_(running_mean: Array, running_var: Array, mean: Array, var: Array, *,
                       momentum: float, count: int) -> None:
    """Move the running statistics towards those of the batch; the variance unbiased by count / (count - 1)."""
    for running, batch, factor in ((running_mean, mean, 1.0), (running_var, var, count / (count - 1))):
        running *= 1.0 - momentum
        running += (momentum * factor) * batch


def _row_mean(values: Array) -> Array:
    """Mean over the last axis, which stays, in float64."""
    return np.add.reduce(values, axis=-1, dtype=np.float64, keepdims=True) / values.shape[-1]


def layer_norm(y: Array, mean: Array, rstd: Array, x: Array, gamma: Array, beta: Array, *, eps: float) -> None:
    """(x - mean) rstd gamma + beta, with rstd = 1 / sqrt(var + eps); in two passes, so that nothing cancels."""
    means, rstds = mean[..., None], rstd[..., None]
    for index in index_blocks(x.shape, x.itemsize, whole=1):
        part = y[index]
        centre = _row_mean(x[index])
        means[index] = centre
        np.subtract(x[index], centre.astype(x.dtype), out=part)  # x is not read again: y may lie over it
        rstds[index] = _reciprocal_deviation(_row_mean(part * part), eps)
        part *= rstds[index]
        part *= gamma
        part += beta


def _normed(x: Array, means: Array, rstds: Array, index: Index) -> Array:
    values = x[index] - means[index]
    values *= rstds[index]
    return values


def layer_norm_grad_reduce(dgamma: Array, dbeta: Array, dy: Array, x: Array, mean: Array, rstd: Array) -> None:
    """dbeta = sum dy, dgamma = sum dy (x - mean) rstd, over all rows."""
    means, rstds, axes = mean[..., None], rstd[..., None], tuple(range(x.ndim - 1))
    gamma_sum, beta_sum = np.zeros(x.shape[-1]), np.zeros(x.shape[-1])
    for index in index_blocks(x.shape, x.itemsize, whole=1):
        products = _normed(x, means, rstds, index)
        products *= dy[index]
        gamma_sum += np.add.reduce(products, axis=axes, dtype=np.float64)
        beta_sum += np.add.reduce(dy[index], axis=axes, dtype=np.float64)
    dgamma[...], dbeta[...] = gamma_sum, beta_sum


def layer_norm_grad(dx: Array, dy: Array, x: Array, gamma: Array, mean: Array, rstd: Array) -> None:
    """rstd (g - mean of g - xhat times the mean of g xhat) for each row, with g = dy gamma, xhat = (x - mean) rstd."""
    means, rstds = mean[..., None], rstd[..., None]
    for index in index_blocks(x.shape, x.itemsize, whole=1):
        normed = _normed(x, means, rstds, index)
        part = dx[index]
        np.multiply(dy[index], gamma, out=part)  # x and dy are not read again: dx may lie over either
        level, slope = _row_mean(part), _row_mean(part * normed)
        normed *= slope.astype(x.dtype)
        part -= level.astype(x.dtype)
        part -= normed
        part *= rstds[index]
