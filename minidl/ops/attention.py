"""Attention as one fused operation, and the parts of unfused attention: masked softmax, splitting and merging of heads.

The fused operation never stores its scores (one per head and pair of positions). For the gradient it keeps q, k, v, the
result and one number per row, and recomputes the scores from them (Dao, Fu, Ermon, Rudra & Re, "FlashAttention", 2022).
"""

from collections.abc import Sequence

from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError, UserError
from minidl.meta import Cost, Meta, Shape, meta, wide
from minidl.op import Attrs, Op
from minidl.ops.arguments import plain_number
from minidl.ops.elementwise import EITHER, FIRST, broadcast, sum_to
from minidl.ops.shape import contiguous, permute, reshape
from minidl.parts.slice_rules import Rule, Slices, elementwise
from minidl.tensor import Gradients, Needs, Tensor


def _softmax_infer(x: Meta, mask: Meta | None = None) -> Meta:
    if not x.shape:
        raise ShapeError("softmax needs at least one dimension")
    if mask is not None and (mask.dtype != x.dtype or broadcast(x.shape, mask.shape) != x.shape):
        raise ShapeError(f"softmax: mask {mask} does not broadcast to {x}")
    return meta(x.shape, x.dtype)


def _softmax_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(5.0 * outputs[0].size, float(sum(m.nbytes for m in (*inputs, *outputs))), "reduce")


def _softmax_grad_infer(dy: Meta, y: Meta) -> Meta:
    return meta(y.shape, y.dtype)


def _softmax_vjp(needs: Needs, dy: Tensor, y: Tensor, *, input_shapes: tuple[Shape, ...]) -> Gradients:
    dx = apply(SOFTMAX_GRAD, donate(dy), donate(y))
    # The mask is added to x, so it has the same gradient, summed over the dimensions along which it was broadcast.
    dmask = sum_to(dx, input_shapes[1]) if len(needs) > 1 and needs[1] else None
    return (dx if needs[0] else None, dmask)[:len(needs)]


def _attention_infer(q: Meta, k: Meta, v: Meta, mask: Meta | None = None, *, heads: int, causal: bool, p: float,
                     seed: int, first: int = 0) -> tuple[Meta, Meta]:
    if len(q.shape) != 3 or len(k.shape) != 3 or k.shape != v.shape or q.shape[::2] != k.shape[::2]:
        raise ShapeError(f"attention needs q [N, L, width] and k, v [N, S, width], not {list(q.shape)}, "
                         f"{list(k.shape)} and {list(v.shape)}")
    if not q.dtype.floating or not q.dtype is k.dtype is v.dtype:
        raise ShapeError(f"attention needs q, k and v of one dtype, not {q.dtype.name}, {k.dtype.name}, {v.dtype.name}")
    n, length, width = q.shape
    keys = k.shape[1]
    if not keys:
        raise ShapeError(f"attention needs at least one key, and {list(k.shape)} has none")
    if heads < 1 or width % heads:
        raise ShapeError(f"a width of {width} cannot be divided among {heads} attention heads")
    if causal and length != keys:
        raise ShapeError(f"causal attention needs as many keys as queries, not {keys} for {length}")
    if not 0.0 <= p < 1.0:
        raise ShapeError(f"dropout's p must be in [0, 1), not {p}")
    scores = (n, heads, length, keys)
    if mask is not None and (mask.dtype not in (q.dtype, wide(q.dtype)) or broadcast(scores, mask.shape) != scores):
        raise ShapeError(f"attention: mask {mask} does not broadcast to {q.dtype.name}{list(scores)}")
    return meta(q.shape, q.dtype), meta((n, heads, length), wide(q.dtype))


def _attention_grad_infer(dy: Meta, q: Meta, k: Meta, v: Meta, y: Meta, lse: Meta, mask: Meta | None = None, *,
                          heads: int, causal: bool, p: float, seed: int, first: int = 0) -> tuple[Meta, Meta, Meta]:
    given = tuple((m.shape, m.dtype) for m in (dy, y, lse))
    made, sums = _attention_infer(q, k, v, mask, heads=heads, causal=causal, p=p, seed=seed)
    if given != ((made.shape, made.dtype), (made.shape, made.dtype), (sums.shape, sums.dtype)):
        raise ShapeError(f"the gradient of attention that gave {made} and {sums} does not fit {dy}, {y} and {lse}")
    return meta(q.shape, q.dtype), meta(k.shape, k.dtype), meta(v.shape, v.dtype)


def _attention_cost(q: Meta, k: Meta, operands: tuple[Meta, ...], products: int, causal: bool) -> Cost:
    """Return the cost of ``products`` products: 2 N L S width FLOPs each, half if ``causal``; operands move once."""
    flops = 2.0 * products * q.size * k.shape[1] * (0.5 if causal else 1.0)
    return Cost(flops, float(sum(m.nbytes for m in operands)), "matmul")


def _attention_vjp(needs: Needs, dy: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, y: Tensor,
                   lse: Tensor, *, heads: int, causal: bool, p: float, seed: int) -> Gradients:
    seen = () if mask is None else (mask,)
    dy = contiguous(dy)  # the kernel would copy an expanded dy, in memory outside the budget
    gradients = apply_all(ATTENTION_GRAD, donate(dy), donate(q), donate(k), donate(v), donate(y), donate(lse), *seen,
                          heads=heads, causal=causal, p=p, seed=seed)
    return (*(g if need else None for g, need in zip(gradients, needs, strict=False)), None)[:len(needs)]


def _rows_in_slices(inputs: Sequence[Meta], attrs: Attrs, sliced: Sequence[bool]) -> Rule | None:
    return elementwise()(inputs, attrs, sliced) if len(inputs[0].shape) > 1 else None


def _in_slices(mask: int) -> Slices:
    """Return the slicing rule: all inputs along dimension 0, but number ``mask`` only if its dimension 0 is the batch.
    """
    def rule(inputs: Sequence[Meta], attrs: Attrs, sliced: Sequence[bool]) -> Rule | None:
        batch = inputs[0].shape[0]
        along = tuple([i != mask or len(m.shape) == 4 and m.shape[0] == batch for i, m in enumerate(inputs)])
        return Rule(along, first="first" if attrs["p"] else "")  # so that dropout's mask is that of the whole batch
    return rule


# Forward 2 products, q k' and p v; backward 5: q k' again, dy v', and one for each of the three gradients.
ATTENTION = Op("scaled_dot_product_attention", _attention_infer, lambda inputs, outputs, attrs: _attention_cost(
    inputs[0], inputs[1], (*inputs, *outputs), 2, attrs["causal"]), vjp=_attention_vjp, outputs=("y", "lse"),
               volatile=("seed",), slices=_in_slices(mask=3))
ATTENTION_GRAD = Op("scaled_dot_product_attention_grad", _attention_grad_infer, lambda inputs, outputs, attrs:
                    _attention_cost(inputs[1], inputs[2], (*inputs, *outputs), 5, attrs["causal"]),
                    outputs=("dq", "dk", "dv"), volatile=("seed",), slices=_in_slices(mask=6))
# A softmax of a vector has no batch dimension to slice.
SOFTMAX_GRAD = Op("softmax_grad", _softmax_grad_infer, _softmax_cost, donates=EITHER, slices=_rows_in_slices)
SOFTMAX = Op("softmax", _softmax_infer, _softmax_cost, vjp=_softmax_vjp, donates=FIRST, slices=_rows_in_slices)


def softmax(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(x + mask) over the last dimension. Raises ShapeError if the mask does not broadcast to x."""
    return apply(SOFTMAX, x) if mask is None else apply(SOFTMAX, x, mask)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, heads: int,
                                 causal: bool = False, p: float = 0.0, seed: int = 0) -> Tensor:
    """Return dropout(softmax(q k^T / sqrt(D) + mask)) v per head, as one operation.
    The formula is that of Vaswani et al. 2017, section 3.2.1.

    q        [N, L, heads * D]; k, v: [N, S, heads * D]; the result: [N, L, heads * D]
    mask     constant, of their dtype or float32; broadcasts to [N, heads, L, S]. A row of -inf gives NaN
    causal   True: position i also sees only positions up to i; then L = S
    p, seed  dropout of the probabilities, with the mask that ``dropout`` of [N, heads, L, S] has for the same seed

    Raises ShapeError for shapes other than these; UserError for a mask that requires a gradient.
    """
    if mask is not None and mask.requires_grad:
        raise UserError("attention as one operation has no gradient for its mask; use nn.attend")
    seen = () if mask is None else (mask,)
    return apply_all(ATTENTION, q, k, v, *seen, heads=heads, causal=causal, p=plain_number("dropout's p", p),
                     seed=seed)[0]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return hidden states [N, L, heads * D] as a view [N, heads, L, D]."""
    n, length, width = x.shape
    return permute(reshape(x, (n, length, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(x: Tensor) -> Tensor:
    """Return heads [N, heads, L, D] as hidden states [N, L, heads * D], with a position's heads side by side."""
    n, heads, length, width = x.shape
    return reshape(permute(x, (0, 2, 1, 3)), (n, length, heads * width))
