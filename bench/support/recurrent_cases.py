"""The steps of recurrent layers: cases, and their formulas one step after the other."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.support.kernel_case import Case


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _order(steps: int, backwards: bool) -> list[tuple[int, int, int]]:
    """Return for each step its number, and the rows of the states before and after it."""
    if backwards:
        return [(t, t + 1, t) for t in reversed(range(steps))]
    return [(t, t, t + 1) for t in range(steps)]


def lstm_ref(given: Any, w: Any, h: Any, c: Any, b: Any = 0.0, *, backwards: bool) -> Any:
    """Return an LSTM's hidden states [N, steps + 2, width], its gates i, f, g, o side by side, and its cell states.

    The hidden states have the initial one among them, and the last cell state as their last row.
    """
    (n, steps, _), width = given.shape, h.shape[1]
    y, gates, cells = np.zeros((n, steps + 2, width)), np.zeros(given.shape), np.zeros((n, steps, width))
    y[:, steps if backwards else 0] = h
    for t, before, after in _order(steps, backwards):
        i, f, g, o = np.split(given[:, t] + y[:, before] @ w.T + b, 4, axis=1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        gates[:, t], cells[:, t], y[:, after] = np.concatenate([i, f, g, o], 1), c, o * np.tanh(c)
    y[:, -1] = c
    return y, gates, cells


def lstm_grad_ref(dy: Any, gates: Any, cells: Any, w: Any, c: Any, *, backwards: bool) -> Any:
    """Return an LSTM's gradients with respect to the input terms, and to the initial hidden and cell states h and c."""
    steps = cells.shape[1]
    dgiven, dh, dc = np.zeros(gates.shape), np.zeros(c.shape), dy[:, -1]
    order = _order(steps, backwards)
    for number, (t, _, after) in reversed(list(enumerate(order))):
        i, f, g, o = np.split(gates[:, t], 4, axis=1)
        old, shown, d = cells[:, order[number - 1][0]] if number else c, np.tanh(cells[:, t]), dh + dy[:, after]
        dc = dc + d * o * (1 - shown**2)
        dgiven[:, t] = np.concatenate([dc * g * i * (1 - i), dc * old * f * (1 - f), dc * i * (1 - g**2),
                                       d * shown * o * (1 - o)], 1)
        dh, dc = dgiven[:, t] @ w, dc * f
    return dgiven, dh + dy[:, steps if backwards else 0], dc


def gru_ref(given: Any, w: Any, h: Any, b: Any = 0.0, *, backwards: bool) -> Any:
    """Return a GRU's hidden states with the initial one, its gates r, z, n, and the hidden state's part of n's sum."""
    (n, steps, _), width = given.shape, h.shape[1]
    y, gates, terms = np.zeros((n, steps + 1, width)), np.zeros(given.shape), np.zeros((n, steps, width))
    y[:, steps if backwards else 0] = h
    for t, before, after in _order(steps, backwards):
        own = np.split(y[:, before] @ w.T + b, 3, axis=1)
        x = np.split(given[:, t], 3, axis=1)
        r, z = _sigmoid(x[0] + own[0]), _sigmoid(x[1] + own[1])
        new = np.tanh(x[2] + r * own[2])
        gates[:, t], terms[:, t] = np.concatenate([r, z, new], 1), own[2]
        y[:, after] = (1 - z) * new + z * y[:, before]
    return y, gates, terms


def gru_grad_ref(dy: Any, y: Any, gates: Any, terms: Any, w: Any, *, backwards: bool) -> Any:
    """Return a GRU's gradients with respect to the input terms, the hidden state's part of n, and the initial state h.
    """
    steps = terms.shape[1]
    dgiven, dterms, dh = np.zeros(gates.shape), np.zeros(terms.shape), np.zeros(terms[:, 0].shape)
    for t, before, after in reversed(_order(steps, backwards)):
        r, z, new = np.split(gates[:, t], 3, axis=1)
        d = dh + dy[:, after]
        dnew = d * (1 - z) * (1 - new**2)
        dr, dz = dnew * terms[:, t] * r * (1 - r), d * (y[:, before] - new) * z * (1 - z)
        dgiven[:, t], dterms[:, t] = np.concatenate([dr, dz, dnew], 1), dnew * r
        dh = d * z + np.concatenate([dr, dz, dnew * r], 1) @ w
    return dgiven, dterms, dh + dy[:, steps if backwards else 0]


def cases(block: int) -> Iterator[Case]:
    """Yield cases with batches at the edges of a block's share, one or more steps and units, in both directions."""
    for n, steps, width, backwards in ((1, 1, 1, False), (7, 3, 2, True), (8, 2, 5, False), (17, 4, 3, True)):
        attrs, h = {"backwards": backwards}, (n, width)
        y, row, terms, b = (n, steps + 2, width), (n, steps, width), (n, steps, 4 * width), (4 * width,)
        yield Case("lstm", (terms, (4 * width, width), h, h), lstm_ref, attrs)
        yield Case("lstm", (terms, (4 * width, width), h, h, b), lstm_ref, attrs)
        yield Case("lstm_grad", (y, terms, row, (4 * width, width), h), lstm_grad_ref, attrs)
        y, terms, b = (n, steps + 1, width), (n, steps, 3 * width), (3 * width,)
        yield Case("gru", (terms, (3 * width, width), h), gru_ref, attrs)
        yield Case("gru", (terms, (3 * width, width), h, b), gru_ref, attrs)
        yield Case("gru_grad", (y, y, terms, row, (3 * width, width)), gru_grad_ref, attrs)
