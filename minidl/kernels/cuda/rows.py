"""Kernels on rows (all elements along the last dimension), one thread block per row: addresses and launch options.

A row of up to THREADS * MOST elements is read into registers once. Each pass over a longer row reads it again, mostly
from the cache.
"""

from math import prod
from typing import Any

import numpy as np

from minidl.kernels.cuda import launch
from minidl.kernels.cuda.launch import Launches, View, integers
from minidl.kernels.cuda.layout import merged, padded, power_of_two
from minidl.kernels.cuda.shape import copy

MOST = 16  # elements of a row that a thread holds
WARP = 32


def shape_of_block(width: int) -> dict[str, Any]:
    """Return kernel options for rows of ``width`` elements: threads, and items.
    items: elements of a row that each thread holds in registers; 0: none, as they would be too many."""
    threads = min(launch.THREADS, max(min(WARP, launch.THREADS), power_of_two(-(-width // 4))))
    items = power_of_two(-(-width // threads))
    return {"threads": threads, "items": items if items <= MOST else 0}


def rows(builder: Launches, wide: list[View], each: list[View]) -> tuple[list[View], int, tuple[np.int64, ...]]:
    """Return operands, the number of rows, and arguments: width, n1, n2, and of each operand s0, s1, s2, step in a row.

    wide: of one shape, outputs first; each: of that shape without the last dimension, with stride 0 within the row.
    Operands that cannot be walked over in three dimensions are copied; outputs are contiguous, so they never are.
    """
    lead, width = wide[0].shape[:-1], wide[0].shape[-1]
    for attempt in range(2):
        strides = [a.strides[:-1] for a in wide] + [a.strides for a in each]
        dims = merged(lead, *strides)
        if len(dims) <= 3:
            break
        assert not attempt
        wide, each = ([_dense(builder, a) for a in group] for group in (wide, each))
    dims = padded(dims, 3, len(wide) + len(each))
    inner = [a.strides[-1] for a in wide] + [0] * len(each)
    arguments = [width, dims[1][0], dims[2][0]]
    for operand, step in enumerate(inner, 1):
        arguments += [dims[0][operand], dims[1][operand], dims[2][operand], step]
    return [*wide, *each], prod(lead), integers(*arguments)


def _dense(builder: Launches, a: View) -> View:
    if a.contiguous:
        return a
    dense = builder.scratch(a.shape, a.dtype.name)
    copy(builder, dense, a)
    return dense
