"""Optimizer steps, fills, uploads and random numbers, in place. Knows arrays; no tensors, no devices."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from minidl.errors import ShapeError
from minidl.kernels.cpu.blocks import Array, blocks


def _grouped(tensors: tuple[Array, ...], groups: int) -> Iterator[tuple[Array, ...]]:
    """Matching pieces of the i-th tensor of every group, for every i."""
    n = len(tensors) // groups
    for i in range(n):
        yield from blocks(*tensors[i::n])


def _decayed(gradient: Array, parameter: Array, weight_decay: float) -> Array:
    """gradient + weight_decay * parameter; the gradient itself, not a copy, if there is no decay."""
    if not weight_decay:
        return gradient
    direction = parameter * weight_decay
    direction += gradient
    return direction


def sgd_(*tensors: Array, lr: float, weight_decay: float = 0.0) -> None:
    """p -= lr (g + weight_decay p).  Tensors: parameters, gradients."""
    for p, g in _grouped(tensors, 2):
        p -= lr * _decayed(g, p, weight_decay)


def sgd_momentum_(*tensors: Array, lr: float, momentum: float, weight_decay: float = 0.0,
                  first: bool = False) -> None:
    """buf = momentum buf + g + weight_decay p (the first time without buf), p -= lr buf.

    Tensors: parameters, buffers, gradients. On the first step the buffers are written without being read.
    """
    for p, buf, g in _grouped(tensors, 3):
        direction = _decayed(g, p, weight_decay)
        if first:
            buf[...] = direction
        else:
            buf *= momentum
            buf += direction
        p -= lr * buf


def adam_(*tensors: Array, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float = 0.0,
          step: int, decoupled: bool = False) -> None:
    """Adam (Kingma & Ba 2015, algorithm 1); ``step`` counts from 1.

    The decay is L2, in the gradient, or if ``decoupled`` a factor of its own (AdamW: Loshchilov & Hutter 2019).
    Tensors: parameters, first moments, second moments, gradients.
    """
    step_size = lr / (1.0 - beta1**step)
    correction = (1.0 - beta2**step) ** 0.5
    for p, m, v, g in _grouped(tensors, 4):
        if decoupled:
            p *= 1.0 - lr * weight_decay
        gradient = g if decoupled else _decayed(g, p, weight_decay)
        m *= beta1
        m += (1.0 - beta1) * gradient
        v *= beta2
        square = gradient * gradient
        square *= 1.0 - beta2
        v += square
        denominator = np.sqrt(v, out=square)
        denominator /= correction
        denominator += eps
        change = np.divide(m, denominator, out=denominator)
        change *= step_size
        p -= change


def add_(a: Array, b: Array) -> None:
    np.add(a, b, out=a)


def copy_(a: Array, b: Array) -> None:
    np.copyto(a, b)


def fill_(a: Array, *, value: float) -> None:
    a.fill(value)


def full(y: Array, *, value: float, **_: Any) -> None:
    y.fill(value)


def normal_(a: Array, *, seed: int, mean: float, std: float) -> None:
    """Normal numbers: element i, in C order, follows from (seed, i)."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    for (part,) in blocks(a):
        sample = generator.standard_normal(part.shape, dtype=a.dtype.type)
        sample *= std
        np.add(sample, mean, out=part)


def uniform_(a: Array, *, seed: int, low: float, high: float) -> None:
    """Uniform numbers in [low, high): element i, in C order, follows from (seed, i)."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    below = np.nextafter(a.dtype.type(high), a.dtype.type(low))  # scaling may round up to high itself
    for (part,) in blocks(a):
        sample = generator.random(part.shape, dtype=a.dtype.type)
        sample *= high - low
        sample += low
        np.minimum(sample, below, out=part)


def upload(y: Array, *, data: Any, **_: Any) -> None:
    """A host array, converted to y's dtype; zeros for None. Raises ShapeError."""
    if data is None:
        y.fill(0)
        return
    source = np.asarray(data)
    if source.shape != y.shape:
        raise ShapeError(f"upload: data of shape {list(source.shape)} for a tensor of shape {list(y.shape)}")
    np.copyto(y, source, casting="unsafe")


def upload_(a: Array, *, data: Any) -> None:
    upload(a, data=data)
