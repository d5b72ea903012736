"""Softmax over the last dimension in NumPy. Knows arrays; no tensors, no devices."""

import numpy as np

from minidl.kernels.cpu.blocks import Array, index_blocks


def softmax(y: Array, x: Array, mask: Array | None = None) -> None:
    """exp(x + mask - largest) / sum, row by row; sums are accumulated in float64."""
    wide = None if mask is None else np.broadcast_to(mask, x.shape)
    for index in index_blocks(x.shape, x.itemsize, whole=1):
        part, source = y[index], x[index]
        if wide is not None:
            np.add(source, wide[index], out=part)
            source = part
        np.subtract(source, np.max(source, axis=-1, keepdims=True), out=part)
        np.exp(part, out=part)
        part /= np.add.reduce(part, axis=-1, dtype=np.float64, keepdims=True).astype(part.dtype)


def softmax_grad(dx: Array, dy: Array, y: Array) -> None:
    """y (dy - sum dy y), row by row"""
    for index in index_blocks(y.shape, y.itemsize, whole=1):
        dy_part, y_part = dy[index], y[index]
        products = dy_part * y_part  # the only temporary; dx may lie over dy or y
        total = np.add.reduce(products, axis=-1, dtype=np.float64, keepdims=True).astype(y.dtype)
        np.subtract(dy_part, total, out=products)
        np.multiply(products, y_part, out=dx[index])
