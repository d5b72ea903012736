"""Softmax cross-entropy in NumPy. Knows arrays; no tensors, no devices."""

import numpy as np

from minidl.errors import UserError
from minidl.kernels.cpu.blocks import Array, index_blocks


def _check_labels(labels: Array, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise UserError(f"cross_entropy: labels from {low} to {high} for {classes} classes (0 to {classes - 1})")


def cross_entropy(loss: Array, probs: Array, logits: Array, labels: Array) -> None:
    """-mean(log softmax(logits)[label]) and the softmax. Raises UserError for a label that is no class."""
    _check_labels(labels, logits.shape[1])
    total = 0.0
    for index in index_blocks(logits.shape, logits.itemsize, whole=1):
        part, label = probs[index], labels[index[0]]
        np.subtract(logits[index], np.max(logits[index], axis=1, keepdims=True), out=part)
        chosen = part[np.arange(len(label)), label].astype(np.float64)
        np.exp(part, out=part)
        sums = np.add.reduce(part, axis=1, dtype=np.float64, keepdims=True)
        part /= sums.astype(part.dtype)
        total += float(np.sum(np.log(sums[:, 0]) - chosen))
    loss[...] = total / len(labels)


def cross_entropy_grad(dx: Array, dloss: Array, probs: Array, labels: Array) -> None:
    """(softmax - onehot(label)) dloss / N"""
    factor = (dloss / len(labels)).astype(dx.dtype)
    for index in index_blocks(probs.shape, probs.itemsize, whole=1):
        part, label = dx[index], labels[index[0]]
        at_label = np.arange(len(label)), label
        chosen = (probs[index][at_label] - 1) * factor  # before dx, which may lie over probs
        np.multiply(probs[index], factor, out=part)
        part[at_label] = chosen
