"""Elementwise formulas of comparison and selection, under the rules of ``scalar``.
A NaN operand gives NaN; ``sign`` gives 0, as PyTorch's does."""

import numpy as np

from minidl.kernels.scalar import Number, typed

ZERO = np.float32(0)


def absolute(x: Number) -> Number:
    """Return |x|; 0 for -0."""
    return x if x > ZERO else typed(0, x) - x


def sign(x: Number) -> Number:
    """Return 1 for x > 0, -1 for x < 0, 0 for 0 and NaN."""
    return typed(1, x) if x > ZERO else typed(0, x) - typed(1, x) if x < ZERO else typed(0, x)


def maximum(a: Number, b: Number) -> Number:
    """Return the larger of a and b; NaN if one of them is NaN."""
    return a if a >= b or a != a else b


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller of a and b; NaN if one of them is NaN."""
    return a if a <= b or a != a else b
