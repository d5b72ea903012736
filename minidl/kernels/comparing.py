"""Elementwise formulas that only compare and choose, as those of ``scalar``: the same rules hold. NaN passes."""

import numpy as np

from minidl.kernels.scalar import Number, typed

ZERO = np.float32(0)


def absolute(x: Number) -> Number:
    """x without its sign, of -0 too"""
    return x if x > ZERO else typed(0, x) - x


def sign(x: Number) -> Number:
    """1, -1, or 0 for 0 and NaN"""
    return typed(1, x) if x > ZERO else typed(0, x) - typed(1, x) if x < ZERO else typed(0, x)


def maximum(a: Number, b: Number) -> Number:
    """The larger one; NaN if one is"""
    return a if a >= b or a != a else b


def minimum(a: Number, b: Number) -> Number:
    """The smaller one; NaN if one is"""
    return a if a <= b or a != a else b
