"""Many matrix products at once, of matrices that lie anywhere, in compiled code on all cores.

A task makes the part of one product that has a few panels of columns and a block of rows; it packs its part of B, in
pieces of DEPTH rows, and multiplies. Cuts follow from the shapes alone, and no two tasks write the same element.
Knows flat arrays and strides.
"""

from functools import partial
from typing import Any

import numba
import numpy as np

from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.product import multiply
from minidl.kernels.cpu.vectors import lanes, pick_run, turn_run

parallel = partial(compiled, parallel=True)
DEPTH = 256  # rows of B that are packed at a time: a panel of them fits the innermost cache


@compiled
def _pack(panels: Any, b: Any, at: int, row: int, column: int, depth: int, count: int, inside: Any) -> None:
    """B[depth, count] from element ``at`` on, a step of ``row`` down and ``column`` across, as panels."""
    lane_count = lanes(panels)
    width = 3 * lane_count
    if column == 1:
        for first in range(0, count, lane_count):
            to, valid = first // width * depth * width + first % width, lane_count - min(lane_count, count - first)
            for i in range(depth):
                pick_run(panels, to + i * width, b, at + i * row + first, inside, valid)
    elif row == 1:
        for first in range(0, count, lane_count):
            to = first // width * depth * width + first % width
            for i in range(0, depth, lane_count):
                valid = lane_count - min(lane_count, depth - i)
                turn_run(panels, to + i * width, width, depth - i, b, at + i + first * column, column, count - first,
                         inside, valid)
    else:
        for j in range(count):
            to = j // width * depth * width + j % width
            for i in range(depth):
                panels[to + i * width] = b[at + i * row + j * column]


@parallel
def products(c: Any, a: Any, a_starts: Any, a_row: int, a_column: int, b: Any, b_starts: Any, b_row: int,
             b_column: int, bias: Any, keep: bool, m: int, n: int, k: int, height: int, width: int,
             workers: int) -> None:
    """C[i] = A[i] B[i], added to what C holds if ``keep``, or to ``bias`` [n] in every row if that is not empty.

    C is dense: [count, m, n]. A[i] starts at element a_starts[i]; its rows and columns are a_row and a_column elements
    apart; likewise B. A task makes ``height`` rows and ``width`` columns, of whole panels.
    """
    lane_count = lanes(c)
    across, down = (n + width - 1) // width, (m + height - 1) // height
    tasks = a_starts.size * across * down
    for worker in numba.prange(workers):
        panels = np.empty(min(k, DEPTH) * width, c.dtype)
        inside = np.zeros(2 * lane_count, np.int32)  # from lane_count - i on: i lanes inside, the others not
        inside[lane_count:] = -1
        for task in range(worker, tasks, workers):
            i, top, left = task // (across * down), task // across % down * height, task % across * width
            rows, count = min(height, m - top), min(width, n - left)
            to = (i * m + top) * n + left
            if bias.size:
                values = bias[left:left + count]
                for j in range(rows):
                    line = c[to + j * n:to + j * n + count]
                    for q in range(count):
                        line[q] = values[q]
            for first in range(0, k, DEPTH):
                depth = min(DEPTH, k - first)
                _pack(panels, b, b_starts[i] + first * b_row + left * b_column, b_row, b_column, depth, count, inside)
                multiply(c, to, n, a, a_starts[i] + top * a_row + first * a_column, a_row, a_column, panels, 0, rows,
                         count, depth, first > 0 or keep or bias.size > 0)
