"""Many matrix products at once, of matrices with any strides, in compiled code on all cores.

A task computes a block of rows and a few panels of columns (product.py) of one product C = A B; it packs its part of B,
in pieces of DEPTH rows, and multiplies. Cuts follow from the shapes alone, and no two tasks write the same element.
16-bit floats (elements.py) are converted piece by piece, and rounded once the sums are complete. Arrays are flat, with
strides.
"""

from functools import partial
from typing import Any

import numba
import numpy as np

from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.elements import operand, read, room, write
from minidl.kernels.cpu.product import multiply
from minidl.kernels.cpu.vectors import lanes, pick_run, turn_run

parallel = partial(compiled, parallel=True)
DEPTH = 256  # rows of B that are packed at a time: a panel of them fits the innermost cache


@compiled
def edges(array: Any) -> Any:
    """Return flags from which ``pack`` makes masks: those from element ``lanes - i`` on mark the first i of a vector.
    """
    inside = np.zeros(2 * lanes(array), np.int32)
    inside[lanes(array):] = -1
    return inside


@compiled
def pack(panels: Any, b: Any, at: int, row: int, column: int, depth: int, count: int, inside: Any) -> None:
    """Write B[depth, count] as panels. B is b from element ``at``; rows are ``row`` elements apart, columns ``column``.
    inside: the flags of ``edges``."""
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
                panels[to + i * width] = read(b, at + i * row + j * column)


@parallel
def products(c: Any, a: Any, a_starts: Any, a_row: int, a_column: int, b: Any, b_starts: Any, b_row: int,
             b_column: int, bias: Any, parts: int, m: int, n: int, k: int, height: int, width: int, half: bool,
             workers: int) -> None:
    """C[i] = A[i, 0] B[i, 0] + ... + A[i, parts - 1] B[i, parts - 1], plus ``bias`` [n] in every row if there is one.

    C is contiguous: [count, m, n]. A[i, j] starts at element a_starts[i parts + j]; its rows and columns are a_row and
    a_column elements apart; B has the same form. A task makes ``height`` rows and ``width`` columns, of whole panels.
    half: the matrices are 16-bit floats. workers: the number of threads that share the tasks.
    """
    across, down = (n + width - 1) // width, (m + height - 1) // height
    tasks = a_starts.size // parts * across * down
    left_at = min(k, DEPTH) * width  # the buffer: panels, then for halves a block of A and the results
    out_at = left_at + height * min(k, DEPTH)
    for worker in numba.prange(workers):
        panels = np.empty(out_at + height * width if half else left_at, bias.dtype)
        inside = edges(bias)
        for task in range(worker, tasks, workers):
            i, top, left = task // (across * down), task // across % down * height, task % across * width
            rows, count = min(height, m - top), min(width, n - left)
            to = (i * m + top) * n + left
            out, out_to, ld = room(c, panels, True), to, n
            if half:
                out_to, ld = out_at, count
            if bias.size:
                values = bias[left:left + count]
                for j in range(rows):
                    line = out[out_to + j * ld:out_to + j * ld + count]
                    for q in range(count):
                        line[q] = values[q]
            for part in range(i * parts, (i + 1) * parts):
                for first in range(0, k, DEPTH):
                    depth = min(DEPTH, k - first)
                    pack(panels, b, b_starts[part] + first * b_row + left * b_column, b_row, b_column, depth, count,
                         inside)
                    a_, a_at, a_down, a_across = operand(a, a_starts[part] + top * a_row + first * a_column, a_row,
                                                         a_column, panels, left_at, rows, depth)
                    multiply(out, out_to, ld, a_, a_at, a_down, a_across, panels, 0, rows, count, depth,
                             first > 0 or part > i * parts or bias.size > 0)
            if half:
                for j in range(rows):
                    line, sums = c[to + j * n:to + j * n + count], panels[out_to + j * ld:out_to + j * ld + count]
                    for q in range(count):
                        write(line, q, sums[q])
