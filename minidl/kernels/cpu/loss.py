"""Softmax cross-entropy in NumPy. Knows arrays; no tensors, no devices."""

import numpy as np

from minidl.errors import UserError
from minidl.kernels.cpu.blocks import Array, index_blocks


def _counted(labels: Array, classes: int, ignore_index: int) -> Array:
    """[N], booleans: which labels are not to be ignored. Raises UserError if one of them is no class."""
    counted = labels != ignore_index
    wrong = counted & ((labels < 0) | (labels >= classes))
    if wrong.any():
        low, high = int(labels[counted].min()), int(labels[counted].max())
        raise UserError(f"cross_entropy: labels from {low} to {high} for {classes} classes (0 to {classes - 1})")
    return counted


def cross_entropy(loss: Array, probs: Array, logits: Array, labels: Array, *, ignore_index: int = -100) -> None:
    """-mean(log softmax(logits)[label]) over the counted rows, and the softmax of all. Raises UserError."""
    counted = _counted(labels, logits.shape[1], ignore_index)
    total = 0.0
    for index in index_blocks(logits.shape, logits.itemsize, whole=1):
        part, count = probs[index], counted[index[0]]
        np.subtract(logits[index], np.max(logits[index], axis=1, keepdims=True), out=part)
        chosen = part[np.flatnonzero(count), labels[index[0]][count]].astype(np.float64)
        np.exp(part, out=part)
        sums = np.add.reduce(part, axis=1, dtype=np.float64, keepdims=True)
        part /= sums.astype(part.dtype)
        total += float(np.sum(np.log(sums[count, 0]) - chosen))
    loss[...] = np.float64(total) / np.count_nonzero(counted)  # NaN, not an error, if there is none


def cross_entropy_grad(dx: Array, dloss: Array, probs: Array, labels: Array, *, ignore_index: int = -100) -> None:
    """(softmax - onehot(label)) dloss / number of counted rows; 0 in the others."""
    counted = labels != ignore_index
    factor = (dloss / np.count_nonzero(counted)).astype(dx.dtype)
    for index in index_blocks(probs.shape, probs.itemsize, whole=1):
        part, count = dx[index], counted[index[0]]
        at_label = np.flatnonzero(count), labels[index[0]][count]
        chosen = (probs[index][at_label] - 1) * factor  # before dx, which may lie over probs
        np.multiply(probs[index], factor, out=part)
        part[at_label] = chosen
        part[~count] = 0
