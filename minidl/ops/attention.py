"""Softmax over the last dimension, with an additive mask; and the views that part a hidden state into heads."""

from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, meta
from minidl.op import Op
from minidl.ops.elementwise import EITHER, FIRST, broadcast, sum_to
from minidl.ops.shape import permute, reshape
from minidl.tensor import Tensor, apply, give


def _softmax_infer(x: Meta, mask: Meta | None = None) -> Meta:
    if not x.shape:
        raise ShapeError("softmax needs at least one dimension")
    if mask is not None and (mask.dtype != x.dtype or broadcast(x.shape, mask.shape) != x.shape):
        raise ShapeError(f"softmax: mask {mask} does not broadcast to {x}")
    return meta(x.shape, x.dtype)


def _softmax_cost(inputs, outputs, attrs) -> Cost:
    return Cost(5.0 * outputs[0].size, float(sum(m.nbytes for m in (*inputs, *outputs))), "reduce")


def _softmax_grad_infer(dy: Meta, y: Meta) -> Meta:
    return meta(y.shape, y.dtype)


def _softmax_vjp(needs, dy, y, *, input_shapes):
    dx = apply(SOFTMAX_GRAD, give(dy), give(y))
    # What is added to x has the same gradient, summed over the dimensions along which it was broadcast.
    dmask = sum_to(dx, input_shapes[1]) if len(needs) > 1 and needs[1] else None
    return (dx if needs[0] else None, dmask)[:len(needs)]


SOFTMAX_GRAD = Op("softmax_grad", _softmax_grad_infer, _softmax_cost, donates=EITHER)
SOFTMAX = Op("softmax", _softmax_infer, _softmax_cost, vjp=_softmax_vjp, donates=FIRST)


def softmax(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp(x + mask) / sum(exp(x + mask)) over the last dimension.  mask: broadcasts to x.  Raises ShapeError."""
    return apply(SOFTMAX, x) if mask is None else apply(SOFTMAX, x, mask)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[N, L, heads * D] -> a view [N, heads, L, D]."""
    n, length, width = x.shape
    return permute(reshape(x, (n, length, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """[N, heads, L, D] -> [N, L, heads * D]: a copy, in which the heads of a position lie side by side."""
    n, heads, length, width = x.shape
    return reshape(permute(x, (0, 2, 1, 3)), (n, length, heads * width))
