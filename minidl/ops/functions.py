"""Functions of one tensor beyond arithmetic: powers, SiLU, softplus, log-softmax; and functions composed of these."""

from collections.abc import Callable, Sequence
from functools import wraps
from math import nan, prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError, UserError
from minidl.meta import Cost, DType, Meta, Shape, float32, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import as_dtype, axis_of, reduced
from minidl.ops.attention import softmax as last_softmax
from minidl.ops.choose import compare, convert, masked_fill
from minidl.ops.elementwise import (
    BROADCAST, EITHER, FIRST, div, exp, gradient_like, mean, mul, numbers_like, scale, sigmoid, sqrt, sub,
)
from minidl.ops.elementwise import sum as sum_
from minidl.ops.library import absolute, floating, maximum, minimum
from minidl.ops.shape import permute, reshape
from minidl.ops.update import full
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor

P = ParamSpec("P")
T = TypeVar("T")


def _power_infer(x: Meta, *, value: float) -> Meta:
    return numbers_like(x)


def _rows_infer(x: Meta) -> Meta:
    if not x.shape:
        raise ShapeError("log_softmax needs at least one dimension")
    return meta(x.shape, x.dtype)


def _rows_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(5.0 * outputs[0].size, float(inputs[0].nbytes + outputs[0].nbytes), "reduce")


def _power_vjp(needs: Needs, dy: Tensor, x: Tensor, *, value: float) -> Gradients:
    if value == 0:
        return (full(dy.shape, 0.0, dy.dtype),)  # 0 * x ** -1 would be NaN at 0
    return (scale(mul(donate(dy), power(x, value - 1.0)), value),)


def _log_softmax_vjp(needs: Needs, dy: Tensor, y: Tensor) -> Gradients:
    total = sum_(dy, -1, keepdim=True)
    return (sub(donate(dy), mul(exp(donate(y)), total)),)


POWER = Op("power", _power_infer, donates=FIRST, slices=BROADCAST, vjp=_power_vjp)
SILU_GRAD = Op("silu_grad", gradient_like, donates=EITHER, slices=BROADCAST)
SILU = Op("silu", numbers_like, donates=FIRST, slices=BROADCAST,
          vjp=lambda needs, dy, x: (apply(SILU_GRAD, donate(dy), donate(x)),))
SOFTPLUS = Op("softplus", numbers_like, donates=FIRST, slices=BROADCAST,
              vjp=lambda needs, dy, x: (mul(donate(dy), sigmoid(donate(x))),))
LOG_SOFTMAX = Op("log_softmax", _rows_infer, _rows_cost, donates=FIRST, slices=along(0, dims=2), vjp=_log_softmax_vjp)


def power(x: Tensor, value: float) -> Tensor:
    """Return every element to the power of a number.
    Raises ShapeError for integers to a negative or fractional power."""
    if not x.dtype.floating:
        return _whole_power(x, value)
    if value == 2:
        return mul(x, x)
    if value == 0.5:
        return sqrt(x)
    return scale(x, 1.0) if value == 1 else apply(POWER, x, value=float(value))


def _whole_power(x: Tensor, value: float) -> Tensor:
    """Return integers to the power ``value``, a whole number of at least 0, by repeated squaring."""
    if value != int(value) or value < 0:
        raise ShapeError(f"{x.meta} to the power of {value} is not {x.dtype.name}: convert x to a floating dtype")
    y, square, rest = full(x.shape, 1, x.dtype), x, int(value)
    while rest:
        if rest & 1:
            y = mul(y, square)
        rest >>= 1
        square = mul(square, square) if rest else square
    return y


def reciprocal(input: Tensor, value: float = 1.0) -> Tensor:
    """Return ``value`` / input, element by element."""
    input = floating(input)
    return div(full((), value, input.dtype), input)


def silu(input: Tensor) -> Tensor:
    """Return input * sigmoid(input), element by element (Hendrycks & Gimpel 2016; Elfwing, Uchibe & Doya 2018)."""
    return apply(SILU, input)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), element by element; x itself where exp(x) would overflow."""
    return apply(SOFTPLUS, x)


def over_last(x: Tensor, dim: int, what: str) -> tuple[Tensor, Shape]:
    """Return x with dimension ``dim`` moved to the end, and the permutation that moves it back, () if it was last.
    what: the function that errors name. Raises ShapeError for a dimension out of range."""
    axis = axis_of(what, x.shape, dim)
    order = tuple(i for i in range(x.ndim) if i != axis) + (axis,)
    back = tuple(sorted(range(x.ndim), key=order.__getitem__))
    return (x, ()) if axis == x.ndim - 1 else (permute(x, order), back)


def of_numbers_too(function: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Return a version of a function along a dimension that also takes tensors without dimensions.
    It treats these as vectors of one element, and its results then have no dimensions either."""
    def shaped(y: Any) -> Any:
        if isinstance(y, Tensor):
            return reshape(y, ()) if y.shape == (1,) else y
        return type(y)(*map(shaped, y)) if hasattr(y, "_fields") else y

    @wraps(function)
    def of_any(x: Tensor, *args: P.args, **options: P.kwargs) -> T:
        if not isinstance(x, Tensor) or x.shape:
            return function(x, *args, **options)
        given: Any = [reshape(a, (1,)) if isinstance(a, Tensor) and not a.shape else a for a in args]
        result: T = shaped(function(reshape(x, (1,)), *given, **options))
        return result
    return of_any  # type: ignore[return-value]  # the first argument has its own name in each function


def in_dtype(x: Tensor, dtype: DType | None) -> Tensor:
    """Return x converted to ``dtype``; x itself for None."""
    dtype = as_dtype(dtype)
    return x if dtype is None else convert(x, dtype)


def _softmax_dim(input: Tensor, dim: int | None) -> int:
    """Return ``dim``; for None the dimension that PyTorch chooses: 0 of none, one or three dimensions, else 1."""
    return dim if dim is not None else 0 if input.ndim in (0, 1, 3) else 1


@of_numbers_too
def log_softmax(input: Tensor, dim: int | None = -1, dtype: DType | None = None) -> Tensor:
    """Return log(softmax(input)) over one dimension, by default the last, computed in ``dtype`` if given.
    None means dimension 0 of one or three, else 1, as in PyTorch. Raises ShapeError for a dimension out of range."""
    input = in_dtype(input, dtype)
    moved, back = over_last(input, _softmax_dim(input, dim), "log_softmax")
    y = apply(LOG_SOFTMAX, moved)
    return permute(y, back) if back else y


@of_numbers_too
def softmax(input: Tensor, dim: int | None = -1, dtype: DType | None = None) -> Tensor:
    """Return exp(input) / sum(exp(input)) over one dimension, by default the last, computed in ``dtype`` if given.
    None means dimension 0 of one or three, else 1, as in PyTorch. Raises ShapeError for a dimension out of range."""
    input = in_dtype(input, dtype)
    moved, back = over_last(input, _softmax_dim(input, dim), "softmax")
    y = last_softmax(moved)
    return permute(y, back) if back else y


Bound = Tensor | float | None


def clamp(input: Tensor, min: Bound = None, max: Bound = None) -> Tensor:  # noqa: A002 - PyTorch's names
    """Return input limited to the range from ``min`` to ``max``; NaN stays NaN.
    A bound may be a tensor, to which gradients flow. Raises UserError without a bound; ShapeError on a misfit."""
    if min is None and max is None:
        raise UserError("clamp needs at least one of min and max")
    for bound, relation in ((min, "<"), (max, ">")):
        if isinstance(bound, Tensor):
            input = (maximum if relation == "<" else minimum)(input, convert(bound, input.dtype))
        elif bound is not None:
            input = input if input.dtype.floating or float(bound).is_integer() else convert(input, float32)
            input = masked_fill(input, compare(input, bound, relation), bound)
    return input


def var(input: Tensor, dim: int | Shape | bool | None = None, unbiased: bool | None = None, keepdim: bool = False, *,
        correction: float | None = None) -> Tensor:
    """Return the variance over ``dim``, by default over all dimensions: sum((input - mean)^2) / (count - correction).
    ``correction`` is 1 by default; ``unbiased=False`` sets it to 0. The variance of too few elements is NaN.
    ``var(False)`` means ``var(unbiased=False)``, as in PyTorch. Raises ShapeError for integers or a bad ``dim``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ShapeError(f"var takes unbiased or correction, not {unbiased} and {correction}")
    correction = float(unbiased) if unbiased is not None else 1.0 if correction is None else correction
    axes = reduced("var", input.shape, dim)
    count = prod(input.shape[axis] for axis in axes)
    apart = sub(input, mean(input, axes, keepdim=True))
    spread = mean(mul(apart, apart), axes, keepdim=keepdim)
    rest = count - correction
    return scale(spread, count / rest if rest > 0 else nan)


def root(x: Tensor) -> Tensor:
    """Return the square root of every element, with gradient 0 at 0, for norms and deviations."""
    zero = compare(x, 0, "==")
    return masked_fill(sqrt(masked_fill(x, zero, 1.0)), zero, 0.0)


def std(input: Tensor, dim: int | Shape | bool | None = None, unbiased: bool | None = None, keepdim: bool = False, *,
        correction: float | None = None) -> Tensor:
    """Return the standard deviation, the root of ``var(input, ...)``. Its gradient is 0 if all values are equal."""
    return root(var(input, dim, unbiased, keepdim, correction=correction))


for _name, _function in {"__abs__": absolute, "abs": absolute, "clamp": clamp, "softmax": softmax,
                         "log_softmax": log_softmax, "var": var, "std": std}.items():
    setattr(Tensor, _name, _function)
