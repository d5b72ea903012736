"""The steps of an LSTM (Hochreiter & Schmidhuber 1997) and of a GRU (Cho et al. 2014), as in cuDNN.
They are one operation per layer and direction.

``given`` is the inputs' contribution to the gates, w_ih x + b_ih, for all steps: [N, L, gates * H]. A result has all
states of a sequence, [N, L + 1, H], with the initial state before the first step. So its first or last L rows are the
outputs, and the others are the states that the steps read. An LSTM's has one more row, the last cell state. The gates,
which the gradient needs, may overwrite ``given``.
"""

from collections.abc import Sequence

from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta
from minidl.op import Attrs, Op
from minidl.ops.linear import LINEAR_WGRAD, bias_grad, check_dtypes
from minidl.ops.parts import squeeze, view_of
from minidl.ops.shape import between, concat, contiguous
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor


def _check(name: str, gates: int, given: Meta, w: Meta, h: Meta, b: Meta | None) -> tuple[int, int, int]:
    """Return (N, L, H) of given [N, L, gates * H], w, h and b. Raises ShapeError if shapes or dtypes do not fit."""
    width = w.shape[1] if len(w.shape) == 2 else 0
    n, steps = given.shape[:2] if len(given.shape) == 3 else (0, 0)
    if w.shape != (gates * width, width) or given.shape != (n, steps, gates * width) or h.shape != (n, width):
        raise ShapeError(f"{name} needs terms [N, L, {gates} H], a weight [{gates} H, H] and a state [N, H], not "
                         f"{given}, {w} and {h}")
    if b is not None and b.shape != w.shape[:1]:
        raise ShapeError(f"{name}: bias {list(b.shape)} does not fit weight {list(w.shape)}")
    check_dtypes(name, given, w, b)
    if h.dtype is not given.dtype:
        raise ShapeError(f"{name}: a state of {h.dtype.name} does not fit terms of {given.dtype.name}")
    return n, steps, width


def _lstm_infer(given: Meta, w: Meta, h: Meta, c: Meta, b: Meta | None = None, *, backwards: bool
                ) -> tuple[Meta, Meta, Meta]:
    n, steps, width = _check("lstm", 4, given, w, h, b)
    if c != h:
        raise ShapeError(f"lstm: a cell state {c} does not fit the state {h}")
    return meta((n, steps + 2, width), h.dtype), meta(given.shape, h.dtype), meta((n, steps, width), h.dtype)


def _gru_infer(given: Meta, w: Meta, h: Meta, b: Meta | None = None, *, backwards: bool) -> tuple[Meta, Meta, Meta]:
    n, steps, width = _check("gru", 3, given, w, h, b)
    return meta((n, steps + 1, width), h.dtype), meta(given.shape, h.dtype), meta((n, steps, width), h.dtype)


def _cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost: a product of each step's state with the weight, and about 20 operations for each gate."""
    gates, width = max(inputs[0].size, outputs[0].size), outputs[-1].shape[-1]
    return Cost(2.0 * gates * width + 20.0 * gates, float(sum(m.nbytes for m in (*inputs, *outputs))), "matmul")


def _read(y: Tensor, steps: int, backwards: bool) -> Tensor:
    """Return the states that the steps read, one before each step, as a view [N, L, H] of y."""
    return between(y, 1, int(backwards), int(backwards) + steps)


def _lstm_vjp(needs: Needs, dy: Tensor, y: Tensor, gates: Tensor, cells: Tensor, w: Tensor, c: Tensor, *,
              backwards: bool) -> Gradients:
    dgiven, dh, dc = apply_all(LSTM_GRAD, contiguous(dy), donate(gates), cells, w, c, backwards=backwards)
    dw = apply(LINEAR_WGRAD, dgiven, _read(y, dgiven.shape[1], backwards)) if needs[1] else None
    db = bias_grad(dgiven, axis=2) if len(needs) > 4 and needs[4] else None
    return (dgiven, dw, dh, dc, db)[:len(needs)]


def _gru_vjp(needs: Needs, dy: Tensor, y: Tensor, gates: Tensor, terms: Tensor, w: Tensor, *, backwards: bool
             ) -> Gradients:
    dgiven, dterms, dh = apply_all(GRU_GRAD, contiguous(dy), y, donate(gates), donate(terms), w, backwards=backwards)
    parts = (between(dgiven, 2, 0, 2 * dterms.shape[2]), dterms)  # of the terms of the state
    read = _read(y, dgiven.shape[1], backwards)
    dw = concat([apply(LINEAR_WGRAD, part, read) for part in parts], 0) if needs[1] else None
    db = concat([bias_grad(part, axis=2) for part in parts], 0) if len(needs) > 3 and needs[3] else None
    return (dgiven, dw, dh, db)[:len(needs)]


LSTM_GRAD = Op("lstm_grad", lambda dy, gates, cells, w, c, *, backwards: (
    meta(gates.shape, dy.dtype), meta(c.shape, dy.dtype), meta(c.shape, dy.dtype)), _cost,
    outputs=("dgiven", "dh", "dc"), donates=((0, 1),), slices=along(0, 1, 2, 4))
GRU_GRAD = Op("gru_grad", lambda dy, y, gates, terms, w, *, backwards: (
    meta(gates.shape, dy.dtype), meta(terms.shape, dy.dtype), meta((dy.shape[0], dy.shape[2]), dy.dtype)), _cost,
    outputs=("dgiven", "dterms", "dh"), donates=((0, 2), (1, 3)), slices=along(0, 1, 2, 3))
LSTM = Op("lstm", _lstm_infer, _cost, vjp=_lstm_vjp, outputs=("y", "gates", "cells"), donates=((1, 0),),
          slices=along(0, 2, 3))
GRU = Op("gru", _gru_infer, _cost, vjp=_gru_vjp, outputs=("y", "gates", "terms"), donates=((1, 0),),
         slices=along(0, 2))


def _rows(y: Tensor, start: int, count: int) -> Tensor:
    return view_of(y, ((), (start, start + count, 1), ()))


def _row(y: Tensor, number: int) -> Tensor:
    return squeeze(_rows(y, number, 1), 1)


def lstm(given: Tensor, w: Tensor, b: Tensor | None, h: Tensor, c: Tensor, *, backwards: bool = False
         ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs [N, L, H] and the last (h, c) of an LSTM, gates i, f, g, o.
    given: the inputs' gate terms, [N, L, 4 H], w: [4 H, H], b: [4 H], h, c: [N, H]. backwards: last step first.
    Raises ShapeError on a misfit."""
    steps = given.shape[1]
    y = apply(LSTM, given, w, h, c, *(() if b is None else (b,)), backwards=backwards)
    return _rows(y, 1 - backwards, steps), (_row(y, 0 if backwards else steps), _row(y, steps + 1))


def gru(given: Tensor, w: Tensor, b: Tensor | None, h: Tensor, *, backwards: bool = False
        ) -> tuple[Tensor, tuple[Tensor]]:
    """Return the outputs [N, L, H] and the last (h,) of a GRU, gates r, z, n.
    given: the inputs' gate terms, [N, L, 3 H], w: [3 H, H], b: [3 H], h: [N, H]. backwards: last step first.
    Raises ShapeError on a misfit."""
    steps = given.shape[1]
    y = apply(GRU, given, w, h, *(() if b is None else (b,)), backwards=backwards)
    return _rows(y, 1 - backwards, steps), (_row(y, 0 if backwards else steps),)
