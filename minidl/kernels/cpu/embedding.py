"""Rows selected by number (embedding, gather), and their gradients."""

from typing import Any

import numpy as np
from numba import prange

from minidl.errors import UserError
from minidl.kernels.cpu.blocks import Array, index_blocks, is_plain, source
from minidl.kernels.cpu.compiled import PieceLoop
from minidl.kernels.cpu.elementwise import cast
from minidl.meta import Shape


@PieceLoop
def _gather(y: Array, table: Array, numbers: Array) -> None:
    for i in prange(numbers.size):
        row = numbers[i]
        for d in range(y.shape[1]):
            y[i, d] = table[row, d]


@PieceLoop
def _scatter(table: Array, rows: Array, order: Array, starts: Array, targets: Array) -> None:
    """table[targets[g]] += the sum of rows[order[i]] for starts[g] <= i < starts[g + 1], in float64, in that order.
    The gradients of embedding and gather use it."""
    for g in prange(targets.size):
        total = np.zeros(table.shape[1])
        for i in range(starts[g], starts[g + 1]):
            row = order[i]
            for d in range(total.size):
                total[d] += rows[row, d]
        target = targets[g]
        for d in range(total.size):
            table[target, d] += table.dtype.type(total[d])


@PieceLoop
def _clear(table: Array) -> None:
    for row in prange(table.shape[0]):
        for d in range(table.shape[1]):
            table[row, d] = 0


def _numbers(numbers: Array, rows: int, *, what: str) -> Array:
    """Return row numbers as contiguous int64, the one type kernels are compiled for. Raises UserError if out of range.
    """
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if low < 0 or high >= rows:
        raise UserError(f"{what}: row numbers from {low} to {high} for {rows} rows (0 to {rows - 1})")
    return np.ascontiguousarray(numbers, np.int64)


def _take(y: Array, table: Array, numbers: Array) -> None:
    """y[i] = table[numbers[i]] for all i; y, table: [.., D]. Bytes are copied unchanged unless y has another dtype."""
    if y.dtype != table.dtype:
        for index in index_blocks(y.shape, 4, whole=1):
            cast(y[index], table[numbers[index[0]]])
    elif table.flags.c_contiguous:
        words = np.dtype(f"u{table.itemsize}")
        _gather(y.size, y.view(words), table.view(words), numbers)
    else:
        np.take(table, numbers, axis=0, out=y, mode="clip")  # numbers are checked; mode "raise" would copy y first


def _groups(ordered: Array) -> tuple[Array, Array]:
    """Return, for sorted numbers, where each run of equal numbers starts (and the last ends), and each run's number."""
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))
    return starts, ordered[starts[:-1]]


def _scattered(table: Array, numbers: Array, rows: Array) -> None:
    """table = 0, then table[numbers[i]] += rows[i] for every i, sorted by number, then by i.

    table: [R, D], numbers: [...], int64, rows: [*numbers.shape, D]. Rows of one number are first summed in float64.
    """
    flat = numbers.reshape(-1)
    order = np.argsort(flat, kind="stable")
    if is_plain(table) and is_plain(rows):
        _clear(table.size, table)
        _scatter(rows.size, table, rows.reshape(flat.size, table.shape[1]), order, *_groups(flat[order]))
        return
    table.fill(0)
    for index in index_blocks((flat.size, table.shape[1]), 4, whole=1):
        chosen = order[index[0]]
        terms = source(rows[np.unravel_index(chosen, numbers.shape)])
        starts, targets = _groups(flat[chosen])
        totals = np.zeros((targets.size, table.shape[1]), terms.dtype)
        _scatter(terms.size, totals, terms, np.arange(chosen.size), starts, np.arange(targets.size))
        table[targets] = (source(table[targets]) + totals).astype(table.dtype)


def embedding(y: Array, w: Array, ids: Array, **_: Any) -> None:
    """y = w[ids], rounded to y's type. Raises UserError for an id that is not a row."""
    numbers = _numbers(ids, w.shape[0], what="embedding")
    _take(y.reshape(numbers.size, w.shape[1]), w, numbers.reshape(-1))


def embedding_grad(dw: Array, dy: Array, ids: Array, *, rows: int, **_: Any) -> None:
    """dw[r] = the sum of dy over the positions where ids is r, zero if there are none."""
    _scattered(dw, np.ascontiguousarray(ids, np.int64), dy)


def gather_rows(y: Array, x: Array, positions: Array) -> None:
    """y[n P + p] = x[n, positions[n, p]]. Raises UserError for a position that is not a row."""
    numbers = _numbers(positions, x.shape[1], what="gather_rows")
    for rows, table, chosen in zip(y.reshape(*positions.shape, x.shape[2]), x, numbers, strict=True):
        _take(rows, table, chosen)


def gather_rows_grad(dx: Array, dy: Array, positions: Array, *, x_shape: Shape) -> None:
    """dx[n, i] = the sum of the rows of dy whose position in sequence n is i, zero if there are none."""
    numbers = positions + np.arange(x_shape[0])[:, None] * x_shape[1]
    _scattered(dx.reshape(x_shape[0] * x_shape[1], x_shape[2]), numbers.reshape(-1), dy)


def add_rows(y: Array, rows: Array, positions: Array, *, x_shape: Shape) -> None:
    """y = ``gather_rows_grad`` of the rows. Raises UserError for a position that is not a row."""
    gather_rows_grad(y, rows, _numbers(positions, x_shape[1], what="scatter"), x_shape=x_shape)
