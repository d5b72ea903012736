"""Elementwise arithmetic, activations, dropout and sums, in NumPy. Knows arrays; no tensors, no devices.

An output may lie exactly over an input that the operation donates: each formula reads an element before it writes it.
"""

from math import pi
from typing import Any

import numpy as np

from minidl.kernels.cpu.blocks import Array, blocks, index_blocks
from minidl.kernels.random import fold_seed, random_bits
from minidl.meta import Shape


def add(y: Array, a: Array, b: Array) -> None:
    np.add(a, b, out=y)


def sub(y: Array, a: Array, b: Array) -> None:
    np.subtract(a, b, out=y)


def mul(y: Array, a: Array, b: Array) -> None:
    np.multiply(a, b, out=y)


def div(y: Array, a: Array, b: Array) -> None:
    np.divide(a, b, out=y)


def neg(y: Array, x: Array) -> None:
    np.negative(x, out=y)


def scale(y: Array, x: Array, *, value: float) -> None:
    np.multiply(x, value, out=y)


def shift(y: Array, x: Array, *, value: float) -> None:
    np.add(x, value, out=y)


def exp(y: Array, x: Array) -> None:
    np.exp(x, out=y)


def log(y: Array, x: Array) -> None:
    np.log(x, out=y)


def sqrt(y: Array, x: Array) -> None:
    np.sqrt(x, out=y)


def sqrt_grad(dx: Array, dy: Array, y: Array) -> None:
    """dy / (2 y)"""
    np.divide(dy, y, out=dx)
    dx *= 0.5


def relu(y: Array, x: Array) -> None:
    np.maximum(x, 0, out=y)


def relu_grad(dx: Array, dy: Array, y: Array) -> None:
    """dy where y > 0, else 0; selected rather than multiplied, as 0 times infinity is not 0."""
    for dx_part, dy_part, y_part in blocks(dx, dy, y):
        off = y_part <= 0  # before dx is written: it may lie over y
        np.copyto(dx_part, dy_part)
        np.copyto(dx_part, 0, where=off)


def tanh(y: Array, x: Array) -> None:
    np.tanh(x, out=y)


def tanh_grad(dx: Array, dy: Array, y: Array) -> None:
    """dy (1 - y^2)"""
    for dx_part, dy_part, y_part in blocks(dx, dy, y):
        slope = y_part * y_part
        np.subtract(1, slope, out=slope)
        np.multiply(dy_part, slope, out=dx_part)


def sigmoid(y: Array, x: Array) -> None:
    """1 / (1 + exp(-x)); where exp overflows to infinity the quotient is 0, as it should be."""
    for y_part, x_part in blocks(y, x):
        np.negative(x_part, out=y_part)
        np.exp(y_part, out=y_part)
        y_part += 1
        np.reciprocal(y_part, out=y_part)


def sigmoid_grad(dx: Array, dy: Array, y: Array) -> None:
    """dy y (1 - y)"""
    for dx_part, dy_part, y_part in blocks(dx, dy, y):
        slope = 1 - y_part
        slope *= y_part
        np.multiply(dy_part, slope, out=dx_part)


def gelu(y: Array, x: Array) -> None:
    """x P(x), with P(x) = (1 + erf(x / sqrt 2)) / 2"""
    for y_part, x_part in blocks(y, x):
        np.multiply(x_part, _normal_below(x_part), out=y_part)


def gelu_grad(dx: Array, dy: Array, x: Array) -> None:
    """dy (P(x) + x exp(-x^2 / 2) / sqrt(2 pi))"""
    for dx_part, dy_part, x_part in blocks(dx, dy, x):
        slope = x_part * x_part
        slope *= -0.5
        np.exp(slope, out=slope)
        slope *= (2.0 * pi)**-0.5
        slope *= x_part
        slope += _normal_below(x_part)
        np.multiply(dy_part, slope, out=dx_part)


def _normal_below(x: Array) -> Array:
    """The probability that a normal number is below x."""
    from scipy.special import erfc  # not at the top: a simulated device needs no SciPy

    # erfc, not 1 + erf, which would cancel far below zero.
    below = x * -(0.5**0.5)
    erfc(below, out=below)
    below *= 0.5
    return below


def dropout(y: Array, x: Array, *, p: float, seed: int) -> None:
    """x / (1 - p) where the element's random bits are at least p 2^32, else 0. Positions count in C order."""
    key, threshold, keep_scale = fold_seed(seed), int(p * 2.0**32), 1.0 / (1.0 - p)
    start = 0
    for y_part, x_part in blocks(y, x):
        # Taken modulo 2^32 before it becomes an array, so that no position is too large for uint32.
        position = np.arange(y_part.size, dtype=np.uint32) + np.uint32(start & 0xFFFFFFFF)
        dropped = random_bits(key, position) < threshold
        np.multiply(x_part, keep_scale, out=y_part)
        np.copyto(y_part, 0, where=dropped.reshape(y_part.shape))
        start += y_part.size


def sum_to(y: Array, x: Array, *, shape: Shape) -> None:
    """Sum over the dimensions in which ``shape`` is shorter or 1; accumulated in float64 if floating."""
    wide = y.reshape((1,) * (x.ndim - len(shape)) + tuple(shape))
    axes = tuple(i for i, (w, n) in enumerate(zip(wide.shape, x.shape, strict=True)) if w != n)
    if not axes:
        np.copyto(wide, x)
        return
    accumulator: Any = np.float64 if y.dtype.kind == "f" else None
    # Pieces of the output: its float64 copy is the only temporary.
    for index in index_blocks(wide.shape, 8):
        terms = x[tuple(slice(None) if i in axes else part for i, part in enumerate(index))]
        wide[index] = np.add.reduce(terms, axis=axes, dtype=accumulator, keepdims=True)
