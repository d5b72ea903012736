"""Matrix products: matmul over leading batch dimensions, and linear layers with their gradients."""

from collections.abc import Sequence

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Shape, meta, wide
from minidl.op import Attrs, Op
from minidl.ops.elementwise import ADD, broadcast, sum_to
from minidl.ops.shape import reshape
from minidl.parts.slice_rules import along, multiplying
from minidl.tensor import Gradients, Needs, Tensor


def matmul_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of a product [m, k] [k, n]: 2 m n k FLOPs; each operand is moved once."""
    y, a = outputs[0], inputs[0]
    k = a.shape[-2] if attrs.get("transpose_a") else a.shape[-1]
    return Cost(2.0 * y.size * k, float(sum(m.nbytes for m in (*inputs, *outputs))), "matmul")


def _wgrad_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    dy = inputs[0]
    return Cost(2.0 * outputs[0].size * (dy.size // max(1, dy.shape[-1])),
                float(sum(m.nbytes for m in (*inputs, *outputs))), "matmul")


def _matmul_infer(a: Meta, b: Meta, *, transpose_a: bool, transpose_b: bool) -> Meta:
    if len(a.shape) < 2 or len(b.shape) < 2 or a.dtype != b.dtype:
        raise ShapeError(f"matmul needs two matrices of one dtype, not {a} and {b}")
    m, k = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    k2, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if k != k2:
        raise ShapeError(f"matmul: inner dimensions {k} of {list(a.shape)} and {k2} of {list(b.shape)} differ")
    return meta((*broadcast(a.shape[:-2], b.shape[:-2]), m, n), a.dtype)


def _matmul_vjp(needs: Needs, dy: Tensor, a: Tensor, b: Tensor, *, a_shape: Shape, b_shape: Shape, transpose_a: bool,
                transpose_b: bool) -> Gradients:
    # y = A B with A = a or a^T, B = b or b^T:  dA = dy B^T, dB = A^T dy, transposed if the operand was.
    da = db = None
    if needs[0]:
        da = (_matmul(b, dy, transpose_b, True) if transpose_a else _matmul(dy, b, False, not transpose_b))
        da = sum_to(da, a_shape)
    if needs[1]:
        db = (_matmul(dy, a, True, transpose_a) if transpose_b else _matmul(a, dy, not transpose_a, False))
        db = sum_to(db, b_shape)
    return da, db


def check_dtypes(what: str, x: Meta, w: Meta, b: Meta | None) -> None:
    """Raise ShapeError unless the weight w has x's dtype and the bias b the same, or float32 beside 16-bit floats."""
    if w.dtype is not x.dtype or b is not None and b.dtype is not wide(x.dtype):
        bias = f" and a {wide(x.dtype).name} bias" if b is not None else ""
        given = ", ".join(m.dtype.name for m in (x, w, b) if m is not None)
        raise ShapeError(f"{what} of {x.dtype.name} needs a {x.dtype.name} weight{bias}, not {given}")


def _linear_infer(x: Meta, w: Meta, b: Meta | None = None) -> Meta:
    if len(x.shape) < 2 or len(w.shape) != 2 or x.shape[-1] != w.shape[1]:
        raise ShapeError(f"linear: input {list(x.shape)} does not fit weight {list(w.shape)} [out, in]")
    if b is not None and b.shape != w.shape[:1]:
        raise ShapeError(f"linear: bias {list(b.shape)} does not fit weight {list(w.shape)}")
    check_dtypes("linear", x, w, b)
    return meta((*x.shape[:-1], w.shape[0]), x.dtype)


def _linear_vjp(needs: Needs, dy: Tensor, x: Tensor, w: Tensor) -> Gradients:
    db = bias_grad(dy, axis=dy.ndim - 1) if len(needs) > 2 and needs[2] else None
    dw = apply(LINEAR_WGRAD, dy, donate(x)) if needs[1] else None
    dx = apply(LINEAR_DGRAD, donate(dy), w) if needs[0] else None
    return (dx, dw, db)[:len(needs)]


def _bias_grad_infer(dy: Meta, *, axis: int) -> Meta:
    return meta((dy.shape[axis],), wide(dy.dtype))


def _reduce_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(float(inputs[0].size), float(inputs[0].nbytes), "reduce")


MATMUL = Op("matmul", _matmul_infer, matmul_cost, vjp=_matmul_vjp,
            saves=lambda attrs, needs: ("b",) * needs[0] + ("a",) * needs[1], slices=multiplying(ADD))
LINEAR = Op("linear", _linear_infer, matmul_cost, vjp=_linear_vjp,
            saves=lambda attrs, needs: ("w",) * needs[0] + ("x",) * needs[1], slices=along(0))
LINEAR_DGRAD = Op("linear_dgrad", lambda dy, w: meta((*dy.shape[:-1], w.shape[1]), dy.dtype), matmul_cost,
                  slices=along(0))
LINEAR_WGRAD = Op("linear_wgrad", lambda dy, x: meta((dy.shape[-1], x.shape[-1]), dy.dtype), _wgrad_cost,
                  long_lived=True, slices=along(0, 1, whole=(0,), fold=ADD))
BIAS_GRAD = Op("bias_grad", _bias_grad_infer, _reduce_cost, long_lived=True, slices=along(0, whole=(0,), fold=ADD))


def _matmul(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return apply(MATMUL, a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Return the products of matrices [..., M, K] and [..., K, N], broadcast over the leading dimensions.
    transpose_a, transpose_b: swap the last two dimensions of the operand. Strided operands are not copied.
    Raises ShapeError if K, the leading dimensions or the dtypes do not fit."""
    return _matmul(a, b, transpose_a, transpose_b)


def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Return x w^T + b. x: [..., in], w: [out, in], b: [out], float32 if x has 16-bit floats.
    Raises ShapeError for other shapes or dtypes."""
    if x.ndim == 1:
        y = linear(reshape(x, (1, -1)), w, b)
        return reshape(y, y.shape[1:])
    return apply(LINEAR, x, w) if b is None else apply(LINEAR, x, w, b)


def bias_grad(dy: Tensor, *, axis: int) -> Tensor:
    """Return the gradient of a bias: the sum of dy over all axes except ``axis``, float32 for 16-bit floats."""
    return apply(BIAS_GRAD, dy, axis=axis)


setattr(Tensor, "__matmul__", matmul)  # noqa: B010 - the operator belongs to this module, not to tensor.py
