"""Layer normalisation over the last dimension, and its gradients, one row at a time, on NumPy arrays.

Sums over a row, and the constants derived from them, are accumulated in float64 and rounded once.
"""

import math

import numpy as np
from numba import prange

from minidl.kernels.cpu.attention import rows_of
from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, summing
from minidl.kernels.cpu.elementwise import CHUNK, bring
from minidl.kernels.cpu.sums import SLABS, WIDTH, total, total_square


@summing
def _level_and_slope(dy: Array, x: Array, gamma: Array, mean: float, rstd: float) -> tuple[float, float]:
    """Return two sums over one row: of g = dy * gamma, and of g * xhat, with xhat = (x - mean) * rstd."""
    level, slope = 0.0, 0.0
    for i in range(x.size):
        g = dy[i] * gamma[i]
        level += g
        slope += g * ((x[i] - mean) * rstd)
    return level, slope


@PieceLoop
def _layer_norm(y: Array, mean: Array, rstd: Array, x: Array, gamma: Array, beta: Array, eps: float) -> None:
    kind = x.dtype.type
    for r in prange(x.shape[0]):
        row = y[r]
        bring(row, x[r])
        centre = total(row) / row.size
        deviation = math.sqrt(total_square(row, centre) / row.size + eps)
        level, scale = kind(centre), kind(1.0 / deviation)
        mean[r], rstd[r] = level, scale
        for i in range(row.size):
            row[i] = (row[i] - level) * scale * gamma[i] + beta[i]


@PieceLoop
def _layer_norm_grad(dx: Array, dy: Array, x: Array, gamma: Array, mean: Array, rstd: Array) -> None:
    kind = x.dtype.type
    rows = max(1, CHUNK // x.shape[1])
    for chunk in prange((x.shape[0] + rows - 1) // rows):
        results = np.empty(x.shape[1], x.dtype)  # not in dx, which may share the bytes of dy or x
        for r in range(chunk * rows, min(x.shape[0], (chunk + 1) * rows)):
            values, gradient, centre, scale = x[r], dy[r], mean[r], rstd[r]
            total_level, total_slope = _level_and_slope(gradient, values, gamma, centre, scale)
            level, slope = kind(total_level / x.shape[1]), kind(total_slope / x.shape[1])
            for i in range(results.size):
                xhat = (values[i] - centre) * scale
                results[i] = (gradient[i] * gamma[i] - level - xhat * slope) * scale
            bring(dx[r], results)


@PieceLoop
def _layer_norm_grad_reduce(slopes: Array, levels: Array, dy: Array, x: Array, mean: Array, rstd: Array) -> None:
    """Add, for each range t of rows, the sums of dy * xhat to slopes[t] and of dy to levels[t].
    xhat = (x - mean) * rstd."""
    rows = (x.shape[0] + SLABS - 1) // SLABS
    strips = (x.shape[1] + WIDTH - 1) // WIDTH
    for task in prange(SLABS * strips):
        slab, start = task // strips, task % strips * WIDTH
        stop = min(start + WIDTH, x.shape[1])
        slope, level = slopes[slab, start:stop], levels[slab, start:stop]
        for r in range(slab * rows, min((slab + 1) * rows, x.shape[0])):
            values, gradient, centre, scale = x[r, start:stop], dy[r, start:stop], mean[r], rstd[r]
            # Two loops: with four arrays the compiler would have too many overlap checks and not vectorise.
            for i in range(values.size):
                level[i] += gradient[i]
            for i in range(values.size):
                slope[i] += gradient[i] * ((values[i] - centre) * scale)


def layer_norm(y: Array, mean: Array, rstd: Array, x: Array, gamma: Array, beta: Array, *, eps: float) -> None:
    """y = (x - mean) * rstd * gamma + beta, rstd = 1 / sqrt(var + eps), row by row; also sets ``mean`` and ``rstd``."""
    gamma, beta = source(gamma), source(beta)
    for index in pieces(x.shape, y, x, mean, rstd, whole=1):
        rows = (*index[:-1], ...)
        parts = y[index], mean[rows], rstd[rows]
        results, means, rstds = map(room, parts)
        _layer_norm(results.size, rows_of(results), means.reshape(-1), rstds.reshape(-1), rows_of(source(x[index])),
                    gamma, beta, eps)
        for part, result in zip(parts, (results, means, rstds), strict=True):
            settle(part, result)


def layer_norm_grad_reduce(dgamma: Array, dbeta: Array, dy: Array, x: Array, mean: Array, rstd: Array) -> None:
    """dbeta = sum(dy), dgamma = sum(dy * (x - mean) * rstd), over all rows."""
    slopes, levels = np.zeros((2, SLABS, x.shape[-1]))
    for index in pieces(x.shape, dy, x, mean, rstd, whole=1):
        values, rows = rows_of(source(x[index])), (*index[:-1], ...)
        _layer_norm_grad_reduce(values.size, slopes, levels, rows_of(source(dy[index])), values,
                                source(mean[rows]).reshape(-1), source(rstd[rows]).reshape(-1))
    dgamma[...], dbeta[...] = slopes.sum(0), levels.sum(0)


def layer_norm_grad(dx: Array, dy: Array, x: Array, gamma: Array, mean: Array, rstd: Array) -> None:
    """dx = rstd (g - mean of g - xhat mean of g xhat) for each row, with g = dy gamma, xhat = (x - mean) rstd."""
    gamma = source(gamma)
    for index in pieces(x.shape, dx, dy, x, mean, rstd, whole=1):
        part, rows = dx[index], (*index[:-1], ...)
        results = room(part)
        _layer_norm_grad(part.size, rows_of(results), rows_of(source(dy[index])), rows_of(source(x[index])), gamma,
                         source(mean[rows]).reshape(-1), source(rstd[rows]).reshape(-1))
        settle(part, results)
