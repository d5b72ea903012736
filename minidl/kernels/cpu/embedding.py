"""Rows by number, and their gradients, in NumPy. Knows arrays; no tensors, no devices."""

import numpy as np

from minidl.errors import UserError
from minidl.kernels.cpu.blocks import Array, index_blocks
from minidl.meta import Shape


def _check_numbers(numbers: Array, rows: int, *, what: str) -> None:
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if low < 0 or high >= rows:
        raise UserError(f"{what}: row numbers from {low} to {high} for {rows} rows (0 to {rows - 1})")


def _add_rows(table: Array, numbers: Array, rows: Array) -> None:
    """table[numbers[i]] += rows[i] for every i, by the order of the numbers, then of i: the same bits every time.

    table: [R, D], numbers: any shape, rows: [*numbers.shape, D]. Rows of one number are added up in float64 first.
    """
    flat = numbers.reshape(-1)
    order = np.argsort(flat, kind="stable")
    for index in index_blocks((flat.size, table.shape[1]), 8, whole=1):
        chosen = order[index[0]]
        targets, starts = np.unique(flat[chosen], return_index=True)
        terms = rows[np.unravel_index(chosen, numbers.shape)]
        table[targets] += np.add.reduceat(terms, starts, axis=0, dtype=np.float64).astype(table.dtype)


def embedding(y: Array, w: Array, ids: Array) -> None:
    """w[ids]. Raises UserError for a number that is no row."""
    _check_numbers(ids, w.shape[0], what="embedding")
    np.take(w, ids, axis=0, out=y, mode="clip")  # checked above; with mode "raise" NumPy makes a copy of y first


def embedding_grad(dw: Array, dy: Array, ids: Array, *, rows: int) -> None:
    """The sum of dy over all uses of each row, zero for the others."""
    dw.fill(0)
    _add_rows(dw, ids, dy)


def gather_rows(y: Array, x: Array, positions: Array) -> None:
    """x[n, positions[n, p]] as row n P + p. Raises UserError for a number that is no row."""
    _check_numbers(positions, x.shape[1], what="gather_rows")
    for rows, source, numbers in zip(y.reshape(*positions.shape, -1), x, positions, strict=True):
        np.take(source, numbers, axis=0, out=rows, mode="clip")


def gather_rows_grad(dx: Array, dy: Array, positions: Array, *, x_shape: Shape) -> None:
    """dy at the rows it came from, added up where a row came twice, zero elsewhere."""
    dx.fill(0)
    numbers = positions + np.arange(x_shape[0])[:, None] * x_shape[1]
    _add_rows(dx.reshape(-1, x_shape[2]), numbers.reshape(-1), dy)
