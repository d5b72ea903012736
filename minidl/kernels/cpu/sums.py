"""Sums, and similar reductions: accumulated in float64 and rounded once.

The first part has loops over one row (a contiguous 1-D array) that kernels call; their order of summation is fixed
here, by the row's length. The second part is the sum over some dimensions of an array.
"""

from itertools import groupby
from math import prod
from typing import Any

import numpy as np
from numba import prange

from minidl.kernels.cpu.blocks import Array, index_blocks, is_plain
from minidl.kernels.cpu.compiled import PieceLoop, compiled, summing
from minidl.kernels.cpu.half import is_half
from minidl.meta import Shape

SLABS = 4  # parts of a long sum, so that several threads may work on it
FEW = 1 << 12  # below this number of sums, each is split into SLABS
WIDTH = 256  # columns that are summed together


# Loops over rows ----------------------------------------------------------------------------------------------------
@summing
def total(values: Array) -> Any:
    """Return the sum of ``values``."""
    result = 0.0
    for i in range(values.size):
        result += values[i]
    return result


@summing
def total_square(values: Array, mean: float) -> Any:
    """Return the sum of (values - mean)^2."""
    result = 0.0
    for i in range(values.size):
        deviation = values[i] - mean
        result += deviation * deviation
    return result


@summing
def total_product(a: Array, b: Array) -> Any:
    """Return the sum of a * b."""
    result = 0.0
    for i in range(a.size):
        result += a[i] * b[i]
    return result


@summing
def total_and_slope(dy: Array, x: Array, centre: Any) -> Any:
    """Return (sum of dy, sum of dy * (x - centre))."""
    level, slope = 0.0, 0.0
    for i in range(dy.size):
        level += dy[i]
        slope += dy[i] * (x[i] - centre)
    return level, slope


@compiled
def largest(values: Array) -> Any:
    """Return the largest of ``values`` (float32 or float64) if none is NaN; otherwise NaN or any of them.

    Floats are compared as integers, in which positive floats have the same order and negative ones the reverse. Integer
    maxima become vector instructions; maxima of floats do not, because of NaN.
    """
    if values.itemsize == 4:
        words = values.view(np.int32)
        best = np.int32(-2**31)
        for i in range(words.size):
            word = np.int32(words[i] ^ np.int32(np.int32(words[i] >> 31) & np.int32(0x7FFFFFFF)))
            best = word if word > best else best
        best = np.int32(best ^ np.int32(np.int32(best >> 31) & np.int32(0x7FFFFFFF)))
        return values.dtype.type(np.int32(best).view(np.float32))
    longs = values.view(np.int64)
    most = np.int64(-2**63)
    for i in range(longs.size):
        long = longs[i] ^ ((longs[i] >> 63) & np.int64(2**63 - 1))
        most = long if long > most else most
    return values.dtype.type(np.int64(most ^ ((most >> 63) & np.int64(2**63 - 1))).view(np.float64))


# Sums over dimensions -----------------------------------------------------------------------------------------------
@PieceLoop
def _sum_columns(sums: Array, x: Array) -> None:
    """sums[t, b] = the sum of x[a, b] over the t-th of several equal ranges of a."""
    slabs = sums.shape[0]
    rows = (x.shape[0] + slabs - 1) // slabs
    strips = (x.shape[1] + WIDTH - 1) // WIDTH
    for task in prange(slabs * strips):
        slab, start = task // strips, task % strips * WIDTH
        strip = np.zeros(min(WIDTH, x.shape[1] - start))
        for a in range(slab * rows, min((slab + 1) * rows, x.shape[0])):
            values = x[a, start:start + WIDTH]
            for i in range(values.size):
                strip[i] += values[i]
        sums[slab, start:start + WIDTH] = strip


@PieceLoop
def _sum_planes(sums: Array, x: Array) -> None:
    """sums[t, b] = the sum of x[a, b, c] over all c and the t-th range of a. For a single a: over the t-th range of c.
    """
    slabs = sums.shape[0]
    images = (x.shape[0] + slabs - 1) // slabs
    length = (x.shape[2] + slabs - 1) // slabs
    for task in prange(slabs * x.shape[1]):
        slab, b = task // x.shape[1], task % x.shape[1]
        result = 0.0
        if x.shape[0] == 1:
            result = total(x[0, b, slab * length:(slab + 1) * length])
        else:
            for a in range(slab * images, min((slab + 1) * images, x.shape[0])):
                result += total(x[a, b])
        sums[slab, b] = result


def _grouped(shape: Shape, axes: tuple[int, ...]) -> list[tuple[bool, int]]:
    """Return [(True if summed, extent)] of the dimensions, of which neighbours of one kind are merged.
    Those of extent 1 are dropped."""
    kinds = [(i in axes, n) for i, n in enumerate(shape) if n != 1]
    return [(kind, prod(n for _, n in members)) for kind, members in groupby(kinds, key=lambda entry: entry[0])]


def sum_to(y: Array, x: Array, *, shape: Shape, **_: Any) -> None:
    """y = x summed over the leading dimensions that ``shape`` lacks, and over those that have extent 1 in ``shape``.
    Floats are added in float64 and rounded once, integers in int64. shape: of y, which broadcasts to x's."""
    wide = y.reshape((1,) * (x.ndim - len(shape)) + tuple(shape))
    axes = tuple(i for i, (w, n) in enumerate(zip(wide.shape, x.shape, strict=True)) if w != n)
    if not axes:
        np.copyto(wide, x, casting="unsafe")  # cast to the dtype of the sum
        return
    floating = y.dtype.kind == "f" or is_half(y.dtype)
    groups = _grouped(x.shape, axes)
    if floating and is_plain(x) and len(groups) <= 3:
        _sum_plain(y, x, groups)
        return
    # Pieces of the output: its float64 copy is the only temporary.
    for index in index_blocks(wide.shape, 8):
        terms = x[tuple(slice(None) if i in axes else part for i, part in enumerate(index))]
        wide[index] = np.add.reduce(terms, axis=axes, dtype=np.float64 if floating else np.int64, keepdims=True)


def _sum_plain(y: Array, x: Array, groups: list[tuple[bool, int]]) -> None:
    """y = the sum of contiguous x over the summed ones of at most three ``groups`` of merged dimensions."""
    extents = [n for _, n in groups]
    if groups[0][0]:  # summed, kept, summed; the last two may have extent 1
        a, b, c = extents + [1] * (3 - len(groups))
        if len(groups) == 1:
            a, c = 1, a
        _sum_group(y.reshape(-1), x.reshape(a, b, c))
    elif len(groups) == 2:  # kept, summed
        _sum_group(y.reshape(-1), x.reshape(1, *extents))
    else:  # kept, summed, kept
        rows = y.reshape(extents[0], extents[2])
        for row, terms in zip(rows, x.reshape(*extents, 1), strict=True):
            _sum_group(row, terms)


def _sum_group(y: Array, x: Array) -> None:
    """y[b] = the sum of x[a, b, c] over a and c."""
    # Many sums keep several threads busy; few are split into slabs.
    sums = np.empty((SLABS, y.size)) if y.size < FEW else y.reshape(1, -1)
    if x.shape[2] == 1:
        _sum_columns(x.size, sums, x.reshape(x.shape[:2]))
    else:
        _sum_planes(x.size, sums, x)
    if y.size < FEW:
        y[...] = np.add.reduce(sums, axis=0)
