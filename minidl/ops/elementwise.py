"""Elementwise arithmetic with NumPy's broadcasting, activations, and dropout.
It defines shapes, costs and gradients; kernels compute the values."""

from math import nan, prod

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import DType, Meta, Shape, int64, meta, wide
from minidl.op import Op
from minidl.ops.arguments import as_dtype, loses_gradient, number_for, numbers, plain_number, reciprocal, reduced
from minidl.parts.slice_rules import elementwise, expanding, summing
from minidl.tensor import Gradients, Needs, Tensor


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape to which two shapes broadcast by NumPy's rules. Raises ShapeError if there is none."""
    if a == b:
        return a
    longer, other = (a, b) if len(a) >= len(b) else (b, a)
    other = (1,) * (len(longer) - len(other)) + other
    if any(x != y and x != 1 and y != 1 for x, y in zip(longer, other, strict=True)):
        raise ShapeError(f"shapes {list(a)} and {list(b)} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(longer, other, strict=True))


def same_dtype(a: Meta, b: Meta) -> Meta:
    """Return the shape and dtype to which two operands of one dtype broadcast. Raises ShapeError for two dtypes."""
    if a.dtype != b.dtype:
        raise ShapeError(f"dtypes differ: {a.dtype.name} and {b.dtype.name}; x.to(dtype) converts")
    return meta(broadcast(a.shape, b.shape), a.dtype)


def _binary(a: Meta, b: Meta) -> Meta:
    return same_dtype(numbers(a), b)


def numbers_like(x: Meta) -> Meta:
    """Return the description of a contiguous tensor of x's shape and dtype. Raises ShapeError for booleans."""
    return meta(numbers(x).shape, x.dtype)


def _same_scalar(x: Meta, *, value: float) -> Meta:
    return meta(numbers(x).shape, x.dtype)


def gradient_like(dy: Meta, y: Meta) -> Meta:
    """Return dy's description, which the gradient has too. Raises ShapeError if dy does not have y's shape."""
    if dy.shape != y.shape:
        raise ShapeError(f"gradient {list(dy.shape)} does not fit {list(y.shape)}")
    return meta(dy.shape, dy.dtype)


def _sum_to_infer(x: Meta, *, shape: Shape, dtype: DType | None = None) -> Meta:
    if broadcast(x.shape, shape) != x.shape:
        raise ShapeError(f"cannot sum {list(x.shape)} to {list(shape)}")
    return meta(shape, dtype or (x.dtype if x.dtype.floating else int64))


def _sum_to_vjp(needs: Needs, dy: Tensor, *, x_shape: Shape, x_dtype: DType) -> Gradients:
    from minidl.ops.shape import cast  # shape.py needs the arithmetic below
    return (expand(cast(dy, x_dtype), x_shape),)


def _expand_infer(x: Meta, *, shape: Shape) -> Meta:
    if broadcast(x.shape, shape) != shape:
        raise ShapeError(f"cannot expand {list(x.shape)} to {list(shape)}")
    lead = len(shape) - len(x.shape)
    strides = (0,) * lead + tuple(0 if d == 1 and n != 1 else s
                                  for d, n, s in zip(x.shape, shape[lead:], x.strides, strict=True))
    return meta(shape, x.dtype, strides, x.offset)


def sum_to(x: Tensor, shape: Shape) -> Tensor:
    """Sum x over the dimensions along which ``shape`` was broadcast to ``x.shape``: the gradient of a broadcast.
    Sums of any integers are int64."""
    return x if x.shape == shape else apply(SUM_TO, x, shape=shape)


def expand(x: Tensor, shape: Shape) -> Tensor:
    """Return a view of x broadcast to ``shape``, with stride 0 where it repeats. Raises ShapeError on a misfit."""
    return x if x.shape == shape and not loses_gradient(x) else apply(EXPAND, x, shape=tuple(shape))


def _add_vjp(needs: Needs, dy: Tensor, *, a_shape: Shape, b_shape: Shape) -> Gradients:
    # Both branches share dy, so it is not donated: neither may overwrite it while the other still reads it.
    return (sum_to(dy, a_shape) if needs[0] else None, sum_to(dy, b_shape) if needs[1] else None)


def _sub_vjp(needs: Needs, dy: Tensor, *, a_shape: Shape, b_shape: Shape) -> Gradients:
    return (sum_to(dy, a_shape) if needs[0] else None, sum_to(neg(dy), b_shape) if needs[1] else None)


def _mul_vjp(needs: Needs, dy: Tensor, a: Tensor, b: Tensor, *, a_shape: Shape, b_shape: Shape) -> Gradients:
    return (sum_to(mul(dy, b), a_shape) if needs[0] else None, sum_to(mul(dy, a), b_shape) if needs[1] else None)


def _div_vjp(needs: Needs, dy: Tensor, b: Tensor, y: Tensor, *, a_shape: Shape, b_shape: Shape) -> Gradients:
    da = div(dy, b)
    db = sum_to(neg(mul(da, y)), b_shape) if needs[1] else None
    return (sum_to(da, a_shape) if needs[0] else None, db)


EITHER = ((0, 0), (0, 1))  # the output may be written over either input
FIRST = ((0, 0),)
BROADCAST = elementwise()
ADD = Op("add", _binary, vjp=_add_vjp, donates=EITHER, exact=True, slices=BROADCAST)
SUM_TO = Op("sum_to", _sum_to_infer, vjp=_sum_to_vjp, exact=True, slices=summing(ADD))
EXPAND = Op("expand", _expand_infer, view=True, exact=True, vjp=lambda needs, dy, *, x_shape: (sum_to(dy, x_shape),),
            slices=expanding)
SUB = Op("sub", _binary, vjp=_sub_vjp, donates=EITHER, exact=True, slices=BROADCAST)
MUL = Op("mul", _binary, vjp=_mul_vjp, donates=EITHER, exact=True, slices=BROADCAST,
         saves=lambda attrs, needs: ("b",) * needs[0] + ("a",) * needs[1])
DIV = Op("div", _binary, vjp=_div_vjp, donates=EITHER, slices=BROADCAST,
         saves=lambda attrs, needs: ("b",) + ("y",) * needs[1])
NEG: Op = Op("neg", numbers_like, vjp=lambda needs, dy: (neg(donate(dy)),), donates=FIRST, exact=True, slices=BROADCAST)
SCALE = Op("scale", _same_scalar, vjp=lambda needs, dy, *, value: (scale(donate(dy), value),),
           donates=FIRST, volatile=("value",), exact=True, slices=BROADCAST)
SHIFT = Op("shift", _same_scalar, vjp=lambda needs, dy: (dy,),
           donates=FIRST, volatile=("value",), exact=True, slices=BROADCAST)

EXP = Op("exp", numbers_like, vjp=lambda needs, dy, y: (mul(donate(dy), y),), donates=FIRST, slices=BROADCAST)
LOG = Op("log", numbers_like, vjp=lambda needs, dy, x: (div(donate(dy), x),), donates=FIRST, slices=BROADCAST)
SQRT_GRAD = Op("sqrt_grad", gradient_like, donates=EITHER, slices=BROADCAST)
SQRT = Op("sqrt", numbers_like, vjp=lambda needs, dy, y: (apply(SQRT_GRAD, donate(dy), donate(y)),),
          donates=FIRST, slices=BROADCAST)
RELU_GRAD = Op("relu_grad", gradient_like, donates=EITHER, slices=BROADCAST)
RELU = Op("relu", numbers_like, vjp=lambda needs, dy, y: (apply(RELU_GRAD, donate(dy), donate(y)),),
          donates=FIRST, exact=True, slices=BROADCAST)
TANH_GRAD = Op("tanh_grad", gradient_like, donates=EITHER, slices=BROADCAST)
TANH = Op("tanh", numbers_like, vjp=lambda needs, dy, y: (apply(TANH_GRAD, donate(dy), donate(y)),),
          donates=FIRST, slices=BROADCAST)
SIGMOID_GRAD = Op("sigmoid_grad", gradient_like, donates=EITHER, slices=BROADCAST)
SIGMOID = Op("sigmoid", numbers_like, vjp=lambda needs, dy, y: (apply(SIGMOID_GRAD, donate(dy), donate(y)),),
             donates=FIRST, slices=BROADCAST)
GELU_GRAD = Op("gelu_grad", gradient_like, donates=EITHER, slices=BROADCAST)
GELU = Op("gelu", numbers_like, vjp=lambda needs, dy, x: (apply(GELU_GRAD, donate(dy), donate(x)),),
          donates=FIRST, slices=BROADCAST)
GELU_TANH_GRAD = Op("gelu_tanh_grad", gradient_like, donates=EITHER, slices=BROADCAST)
GELU_TANH = Op("gelu_tanh", numbers_like, vjp=lambda needs, dy, x: (apply(GELU_TANH_GRAD, donate(dy), donate(x)),),
               donates=FIRST, slices=BROADCAST)


def _dropout_infer(x: Meta, *, p: float, seed: int, start: int = 0) -> Meta:
    if not 0.0 <= p < 1.0:
        raise ShapeError(f"dropout's p must be in [0, 1), not {p}")
    return meta(x.shape, x.dtype)


# The gradient is the same operation with the same seed: the mask is a function of (seed, element), never stored.
# A slice counts its elements from ``start`` on, so that it has the same mask as the whole batch.
DROPOUT: Op = Op("dropout", _dropout_infer, donates=FIRST, volatile=("seed",), slices=elementwise(start="start"),
             vjp=lambda needs, dy, *, p, seed: (apply(DROPOUT, donate(dy), p=p, seed=seed),))


def neg(input: Tensor) -> Tensor:
    """Return -x, element by element."""
    return apply(NEG, input)


def exp(x: Tensor) -> Tensor:
    """Return exp(x), element by element."""
    return apply(EXP, x)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of every element."""
    return apply(LOG, x)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of every element."""
    return apply(SQRT, x)


def relu(input: Tensor) -> Tensor:
    """Return max(input, 0), element by element; NaN stays NaN."""
    return apply(RELU, input)


def tanh(input: Tensor) -> Tensor:
    """Return the hyperbolic tangent of every element."""
    return apply(TANH, input)


def sigmoid(input: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), element by element."""
    return apply(SIGMOID, input)


def gelu(x: Tensor) -> Tensor:
    """Return x * Phi(x), Phi(x) the probability that a standard normal number is below x, exactly, with erf.
    Source: Hendrycks & Gimpel 2016."""
    return apply(GELU, x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu's approximation x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks & Gimpel, section 2)."""
    return apply(GELU_TANH, x)


def scale(x: Tensor, value: float) -> Tensor:
    """Return x times a number; the number may change between iterations without making the plan invalid.
    Raises ShapeError if x has integers and their dtype cannot represent the number."""
    return apply(SCALE, x, value=number_for("scale", x.meta, value))


def shift(x: Tensor, value: float) -> Tensor:
    """Return x plus a number, which may change between iterations. Raises ShapeError if x's integers cannot hold it."""
    return apply(SHIFT, x, value=number_for("shift", x.meta, value))


def add(a: Tensor, b: Tensor | float) -> Tensor:
    """Return a + b, with broadcasting. Raises ShapeError for shapes that do not broadcast, or two dtypes."""
    return apply(ADD, a, b) if isinstance(b, Tensor) else shift(a, b)


def sub(a: Tensor, b: Tensor | float) -> Tensor:
    """Return a - b, with broadcasting. Raises ShapeError for shapes that do not broadcast, or two dtypes."""
    return apply(SUB, a, b) if isinstance(b, Tensor) else shift(a, -b)


def mul(a: Tensor, b: Tensor | float) -> Tensor:
    """Return a * b, with broadcasting. Raises ShapeError for shapes that do not broadcast, or two dtypes."""
    return apply(MUL, a, b) if isinstance(b, Tensor) else scale(a, b)


def div(a: Tensor, b: Tensor | float) -> Tensor:
    """Return a / b, element by element, with broadcasting; a number b becomes a factor 1 / b.
    Raises ShapeError for shapes that do not broadcast, two dtypes, and integers."""
    if not isinstance(b, Tensor) and a.dtype.floating:
        return scale(a, reciprocal(b))
    return apply(DIV, a, b if isinstance(b, Tensor) else a)


def dropout(x: Tensor, p: float, seed: int) -> Tensor:
    """Zero each element with probability p and divide the rest by 1 - p; the mask follows from (seed, position)."""
    return apply(DROPOUT, x, p=plain_number("dropout's p", p), seed=seed)


def _sum(x: Tensor, dim: int | Shape | None, keepdim: bool, dtype: DType) -> Tensor:
    """Return the sum over ``dim`` with the given dtype."""
    from minidl.ops.shape import reshape  # shape.py needs the arithmetic above
    dims = reduced("sum", x.shape, dim)
    shape = tuple(1 if i in dims else d for i, d in enumerate(x.shape))
    # Also if all summed dimensions have size 1: a sum never shares bytes with x.
    total = apply(SUM_TO, x, shape=shape) if dtype is x.dtype else apply(SUM_TO, x, shape=shape, dtype=dtype)
    return total if keepdim else reshape(total, tuple(d for i, d in enumerate(x.shape) if i not in dims))


def sum(input: Tensor, dim: int | Shape | None = None, keepdim: bool = False, *,  # noqa: A001
        dtype: DType | None = None) -> Tensor:
    """Return the sum over ``dim``, by default over all dimensions; ``keepdim`` keeps them with size 1.
    Negative axes count from the end; sums of integers are int64. All is added in ``dtype``, if given.
    Raises ShapeError for an axis that is repeated or out of range."""
    input = _in_dtype(input, dtype)
    total = _sum(input, dim, keepdim, input.dtype)
    return total if dtype is None else _in_dtype(total, dtype)


def _in_dtype(x: Tensor, dtype: DType | None) -> Tensor:
    from minidl.ops.choose import convert  # choose.py needs the arithmetic above
    dtype = as_dtype(dtype)
    return x if dtype is None else convert(x, dtype)


def mean(input: Tensor, dim: int | Shape | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the mean over ``dim``, by default over all; 16-bit floats are summed in float32; an empty mean is NaN.
    Raises ShapeError for integers."""
    from minidl.ops.shape import cast
    input = _in_dtype(input, dtype)
    if not input.dtype.floating:
        raise ShapeError(f"mean needs floating-point numbers, not {input.meta}: upload it with a floating dtype")
    count = prod(input.shape[i] for i in reduced("mean", input.shape, dim))
    return cast(scale(_sum(input, dim, keepdim, wide(input.dtype)), 1.0 / count if count else nan), input.dtype)


for _name, _function in {"__neg__": neg, "sum": sum, "mean": mean,
                         "relu": relu}.items():
    setattr(Tensor, _name, _function)
