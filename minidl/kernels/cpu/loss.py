"""Softmax cross-entropy, and its gradient, one row at a time."""

import math

import numpy as np
from numba import prange

from minidl.errors import UserError
from minidl.kernels.cpu.attention import soften
from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop
from minidl.kernels.cpu.elementwise import bring
from minidl.kernels.cpu.sums import largest


@PieceLoop
def _cross_entropy(losses: Array, residual: Array, logits: Array, labels: Array, ignore_index: int) -> None:
    """Set each row's loss (0 if ignored) and residual: softmax, less 1 at a label that counts.
    residual may overwrite logits."""
    for r in prange(logits.shape[0]):
        row, label = residual[r], labels[r]
        chosen = 0.0  # read before the row is overwritten
        if label != ignore_index:
            chosen = np.float64(logits[r, label]) - np.float64(largest(logits[r]))
        bring(row, logits[r])
        divisor = soften(row)
        losses[r] = math.log(divisor) - chosen if label != ignore_index else 0.0
        for i in range(row.size):
            row[i] /= logits.dtype.type(divisor)
        if label != ignore_index:
            row[label] -= logits.dtype.type(1)


@PieceLoop
def _cross_entropy_grad(dx: Array, residual: Array, labels: Array, factor: float, ignore_index: int) -> None:
    scale = residual.dtype.type(factor)
    for r in prange(residual.shape[0]):
        row = dx[r]
        if labels[r] == ignore_index:
            row[:] = 0
            continue
        bring(row, residual[r])
        for i in range(row.size):
            row[i] *= scale


def _numbers(labels: Array) -> Array:
    """Return labels as one contiguous int64 array, the only type kernels are compiled for."""
    return np.ascontiguousarray(labels, np.int64)


def _check(labels: Array, classes: int, ignore_index: int) -> int:
    """Return the number of labels that are not ignored. Raises UserError if one of them is not a class."""
    counted = labels != ignore_index
    wrong = counted & ((labels < 0) | (labels >= classes))
    if wrong.any():
        low, high = int(labels[counted].min()), int(labels[counted].max())
        raise UserError(f"cross_entropy: labels from {low} to {high} for {classes} classes (0 to {classes - 1})")
    return int(np.count_nonzero(counted))


def cross_entropy(loss: Array, residual: Array, logits: Array, labels: Array, *, ignore_index: int = -100) -> None:
    """loss = -mean(log softmax(logits)[label]) over rows not ignored; residual = softmax, less 1 at each row's label.

    Without such rows the loss is NaN; in the other rows residual is the softmax. Raises UserError for a label that
    is not a class.
    """
    labels = _numbers(labels)
    count = _check(labels, logits.shape[1], ignore_index)
    losses = np.empty(labels.size)
    for index in pieces(logits.shape, residual, logits, whole=1):
        part = residual[index]
        results = room(part)
        _cross_entropy(part.size, losses[index[0]], results, source(logits[index]), labels[index[0]], ignore_index)
        settle(part, results)
    loss[...] = np.sum(losses) / np.float64(count)  # NaN, not an error, if all labels are ignored


def cross_entropy_grad(dx: Array, dloss: Array, residual: Array, labels: Array, *, ignore_index: int = -100) -> None:
    """dx = residual * dloss / (number of rows not ignored); 0 in ignored rows."""
    labels = _numbers(labels)
    factor = float(dloss) / max(1, int(np.count_nonzero(labels != ignore_index)))
    for index in pieces(residual.shape, dx, residual, whole=1):
        part = dx[index]
        results = room(part)
        _cross_entropy_grad(part.size, results, source(residual[index]), labels[index[0]], factor, ignore_index)
        settle(part, results)


def label_share(y: Array, value: Array, part: Array, labels: Array, *, ignore_index: int = -100) -> None:
    """y = value * (number of labels not ignored in ``part``) / (number of them in ``labels``).
    0 if ``part`` has none; NaN if ``labels`` has none."""
    counted, every = (int(np.count_nonzero(a != ignore_index)) for a in (part, labels))
    if not every:
        y[...] = math.nan
    else:
        y[...] = value * (counted / every) if counted else 0.0
