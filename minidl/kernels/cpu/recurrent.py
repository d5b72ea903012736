"""The steps of an LSTM and of a GRU, and their gradients: a few sequences of the batch at a time.

The sequences of a batch do not depend on each other. A task has GROUP of them, so that each row of the weight is read
from memory once for all of these.
"""

from typing import Any

import numpy as np
from numba import prange

from minidl.kernels.cpu.blocks import Array, pieces, room, settle, source
from minidl.kernels.cpu.compiled import PieceLoop, compiled, summing
from minidl.kernels.scalar import sigmoid, tanh

GROUP = 4  # sequences of a task


@summing
def _dot(a: Array, b: Array) -> Any:
    total = a[0] * b[0]
    for k in range(1, a.size):
        total += a[k] * b[k]
    return total


@compiled
def _add_product(total: Array, terms: Array, w: Array) -> None:
    """total += terms w, so that each row of the weight is read once for all sequences of the task."""
    for j in range(w.shape[0]):
        for r in range(terms.shape[0]):
            x = terms[r, j]
            for k in range(w.shape[1]):
                total[r, k] += x * w[j, k]


@PieceLoop
def _lstm(y: Array, gates: Array, cells: Array, given: Array, w: Array, h0: Array, c0: Array, b: Array,
          backwards: bool, group: int) -> None:
    n, steps, width = cells.shape
    for task in prange((n + group - 1) // group):
        first, stop = task * group, min(n, task * group + group)
        h = h0[first:stop].copy()
        c = c0[first:stop].copy()
        terms = np.empty((stop - first, 4 * width), h.dtype)
        y[first:stop, steps if backwards else 0] = h
        for step in range(steps):
            t = steps - 1 - step if backwards else step
            for j in range(4 * width):
                row = w[j]
                for r in range(stop - first):
                    terms[r, j] = given[first + r, t, j] + (_dot(row, h[r]) + b[j])
            for r in range(stop - first):
                for j in range(width):
                    i, f = sigmoid(terms[r, j]), sigmoid(terms[r, width + j])
                    g, o = tanh(terms[r, 2 * width + j]), sigmoid(terms[r, 3 * width + j])
                    cell = f * c[r, j] + i * g
                    c[r, j] = cell
                    h[r, j] = o * tanh(cell)
                    gates[first + r, t, j] = i
                    gates[first + r, t, width + j] = f
                    gates[first + r, t, 2 * width + j] = g
                    gates[first + r, t, 3 * width + j] = o
                    cells[first + r, t, j] = cell
                    y[first + r, t if backwards else t + 1, j] = h[r, j]
        y[first:stop, steps + 1] = c


@PieceLoop
def _lstm_grad(dgiven: Array, dh0: Array, dc0: Array, dy: Array, gates: Array, cells: Array, w: Array, c0: Array,
               backwards: bool, group: int) -> None:
    n, steps, width = cells.shape
    one = dgiven.dtype.type(1)
    for task in prange((n + group - 1) // group):
        first, stop = task * group, min(n, task * group + group)
        dh = np.zeros((stop - first, width), dh0.dtype)
        dc = dy[first:stop, steps + 1].copy()
        terms = np.empty((stop - first, 4 * width), dh0.dtype)
        for step in range(steps):
            t = step if backwards else steps - 1 - step
            before = t + 1 if backwards else t - 1
            for r in range(stop - first):
                at = first + r
                for j in range(width):
                    i, f = gates[at, t, j], gates[at, t, width + j]
                    g, o = gates[at, t, 2 * width + j], gates[at, t, 3 * width + j]
                    old = cells[at, before, j] if 0 <= before < steps else c0[at, j]
                    shown = tanh(cells[at, t, j])
                    d = dh[r, j] + dy[at, t if backwards else t + 1, j]
                    dcell = dc[r, j] + d * o * (one - shown * shown)
                    dc[r, j] = dcell * f
                    terms[r, j] = dcell * g * (i * (one - i))
                    terms[r, width + j] = dcell * old * (f * (one - f))
                    terms[r, 2 * width + j] = dcell * i * (one - g * g)
                    terms[r, 3 * width + j] = d * shown * (o * (one - o))
                for j in range(4 * width):
                    dgiven[at, t, j] = terms[r, j]
            dh[:] = 0
            _add_product(dh, terms, w)
        for r in range(stop - first):
            for k in range(width):
                dh0[first + r, k] = dh[r, k] + dy[first + r, steps if backwards else 0, k]
                dc0[first + r, k] = dc[r, k]


@PieceLoop
def _gru(y: Array, gates: Array, kept: Array, given: Array, w: Array, h0: Array, b: Array, backwards: bool,
         group: int) -> None:
    n, steps, width = kept.shape
    one = y.dtype.type(1)
    for task in prange((n + group - 1) // group):
        first, stop = task * group, min(n, task * group + group)
        h = h0[first:stop].copy()
        terms = np.empty((stop - first, 3 * width), h.dtype)
        y[first:stop, steps if backwards else 0] = h
        for step in range(steps):
            t = steps - 1 - step if backwards else step
            for j in range(3 * width):
                row = w[j]
                for r in range(stop - first):
                    terms[r, j] = _dot(row, h[r]) + b[j]
            for r in range(stop - first):
                at = first + r
                for j in range(width):
                    reset = sigmoid(given[at, t, j] + terms[r, j])
                    z = sigmoid(given[at, t, width + j] + terms[r, width + j])
                    term = terms[r, 2 * width + j]
                    new = tanh(given[at, t, 2 * width + j] + reset * term)
                    h[r, j] = (one - z) * new + z * h[r, j]
                    gates[at, t, j] = reset
                    gates[at, t, width + j] = z
                    gates[at, t, 2 * width + j] = new
                    kept[at, t, j] = term
                    y[at, t if backwards else t + 1, j] = h[r, j]


@PieceLoop
def _gru_grad(dgiven: Array, dkept: Array, dh0: Array, dy: Array, y: Array, gates: Array, kept: Array, w: Array,
              backwards: bool, group: int) -> None:
    n, steps, width = kept.shape
    one = dgiven.dtype.type(1)
    for task in prange((n + group - 1) // group):
        first, stop = task * group, min(n, task * group + group)
        dh = np.zeros((stop - first, width), dh0.dtype)
        terms = np.empty((stop - first, 3 * width), dh0.dtype)
        for step in range(steps):
            t = step if backwards else steps - 1 - step
            for r in range(stop - first):
                at = first + r
                for j in range(width):
                    reset, z, new = gates[at, t, j], gates[at, t, width + j], gates[at, t, 2 * width + j]
                    d = dh[r, j] + dy[at, t if backwards else t + 1, j]
                    dnew = d * (one - z) * (one - new * new)
                    dreset = dnew * kept[at, t, j] * (reset * (one - reset))
                    dz = d * (y[at, t + 1 if backwards else t, j] - new) * (z * (one - z))
                    dh[r, j] = d * z
                    terms[r, j], terms[r, width + j], terms[r, 2 * width + j] = dreset, dz, dnew * reset
                    dgiven[at, t, j] = dreset
                    dgiven[at, t, width + j] = dz
                    dgiven[at, t, 2 * width + j] = dnew
                    dkept[at, t, j] = dnew * reset
            _add_product(dh, terms, w)
        for r in range(stop - first):
            for k in range(width):
                dh0[first + r, k] = dh[r, k] + dy[first + r, steps if backwards else 0, k]


def _run(kernel: PieceLoop, work: int, outputs: tuple[Array, ...], inputs: tuple[Array, ...], whole: tuple[Array, ...],
         backwards: bool, order: Any) -> None:
    """Run a kernel; on pieces of the batch if an array is strided or 16-bit. work: number of multiply-adds.
    whole: operands without a batch dimension. order(pieces, whole): the kernel's inputs in its order. backwards: the
    sequences are read from their last step to their first."""
    shape = max((a.shape for a in (*outputs, *inputs)), key=len)
    rest = [source(a) for a in whole]
    for index in pieces(shape, *outputs, *inputs, whole=len(shape) - 1):
        parts = [a[index[0]] for a in outputs]
        results = [room(part) for part in parts]
        kernel(work, *results, *order([source(a[index[0]]) for a in inputs], rest), backwards, GROUP)
        for part, result in zip(parts, results, strict=True):
            settle(part, result)


def _bias(b: Array | None, w: Array) -> Array:
    return np.zeros(w.shape[0], np.float32 if w.itemsize == 2 else w.dtype) if b is None else b


def lstm(y: Array, gates: Array, cells: Array, given: Array, w: Array, h: Array, c: Array, b: Array | None = None, *,
         backwards: bool) -> None:
    """y = h, then the states of all steps, then the last cell state; also sets gates (i, f, g, o) and cells.
    y: [N, T + 2, H]; given [N, T, 4 H]: the inputs' terms of the gates; h, c: the first states; w, b: the recurrent
    weight and bias. backwards: steps are taken from the last to the first, and in y h comes after their states."""
    _run(_lstm, given.size * w.shape[1], (y, gates, cells), (given, h, c), (w, _bias(b, w)), backwards,
         lambda own, rest: (own[0], rest[0], own[1], own[2], rest[1]))


def lstm_grad(dgiven: Array, dh: Array, dc: Array, dy: Array, gates: Array, cells: Array, w: Array, c: Array, *,
              backwards: bool) -> None:
    """Set the gradients of ``lstm`` with respect to given, h and c, from dy; dgiven may share the bytes of gates."""
    _run(_lstm_grad, gates.size * w.shape[1], (dgiven, dh, dc), (dy, gates, cells, c), (w,), backwards,
         lambda own, rest: (*own[:3], rest[0], own[3]))


def gru(y: Array, gates: Array, terms: Array, given: Array, w: Array, h: Array, b: Array | None = None, *,
        backwards: bool) -> None:
    """y = h, then the states of all steps; also sets gates (r, z, n) and terms, the state's linear terms in n.
    y: [N, T + 1, H]; given [N, T, 3 H]: the inputs' terms of the gates; h: the first state; w, b: the recurrent weight
    and bias. backwards: steps are taken from the last to the first, and in y h comes after their states."""
    _run(_gru, given.size * w.shape[1], (y, gates, terms), (given, h), (w, _bias(b, w)), backwards,
         lambda own, rest: (own[0], rest[0], own[1], rest[1]))


def gru_grad(dgiven: Array, dterms: Array, dh: Array, dy: Array, y: Array, gates: Array, terms: Array, w: Array, *,
             backwards: bool) -> None:
    """Set the gradients of ``gru`` with respect to given, terms and h, from dy.
    dgiven may share the bytes of gates, and dterms those of terms."""
    _run(_gru_grad, gates.size * w.shape[1], (dgiven, dterms, dh), (dy, y, gates, terms), (w,), backwards,
         lambda own, rest: (*own, rest[0]))
