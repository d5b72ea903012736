"""Functions of one tensor beyond arithmetic: powers, SiLU, softplus, log-softmax; and those composed of others."""

from collections.abc import Sequence
from math import log as logarithm
from math import nan, prod

from minidl.dispatch import apply, give
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Shape, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import axes_of, axis_of
from minidl.ops.attention import softmax as last_softmax
from minidl.ops.choose import compare, masked_fill, where
from minidl.ops.elementwise import (
    BROADCAST,
    EITHER,
    FIRST,
    div,
    exp,
    gradient_like,
    mean,
    mul,
    neg,
    numbers_like,
    scale,
    sigmoid,
    sqrt,
    sub,
)
from minidl.ops.elementwise import sum as sum_
from minidl.ops.shape import permute
from minidl.ops.update import full
from minidl.parts.slice_rules import along
from minidl.tensor import Gradients, Needs, Tensor


def _power_infer(x: Meta, *, value: float) -> Meta:
    return numbers_like(x)


def _rows_infer(x: Meta) -> Meta:
    if not x.shape:
        raise ShapeError("log_softmax needs at least one dimension")
    return meta(x.shape, x.dtype)


def _rows_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(5.0 * outputs[0].size, float(inputs[0].nbytes + outputs[0].nbytes), "reduce")


def _power_vjp(needs: Needs, dy: Tensor, x: Tensor, *, value: float) -> Gradients:
    return (scale(mul(give(dy), power(x, value - 1.0)), value),)


def _log_softmax_vjp(needs: Needs, dy: Tensor, y: Tensor) -> Gradients:
    total = sum_(dy, -1, keepdim=True)
    return (sub(give(dy), mul(exp(give(y)), total)),)


POWER = Op("power", _power_infer, donates=FIRST, slices=BROADCAST, vjp=_power_vjp)
SILU_GRAD = Op("silu_grad", gradient_like, donates=EITHER, slices=BROADCAST)
SILU = Op("silu", numbers_like, donates=FIRST, slices=BROADCAST,
          vjp=lambda needs, dy, x: (apply(SILU_GRAD, give(dy), give(x)),))
SOFTPLUS = Op("softplus", numbers_like, donates=FIRST, slices=BROADCAST,
              vjp=lambda needs, dy, x: (mul(give(dy), sigmoid(give(x))),))
LOG_SOFTMAX = Op("log_softmax", _rows_infer, _rows_cost, donates=FIRST, slices=along(0, dims=2), vjp=_log_softmax_vjp)


def power(x: Tensor, value: float) -> Tensor:
    """Every element to the power of a number. Raises ShapeError for integers, unless the power is 0, 1 or 2."""
    if value == 2:
        return mul(x, x)
    if value == 0.5:
        return sqrt(x)
    if value == 1:
        return scale(x, 1.0)
    return full(x.shape, 1.0, x.dtype) if value == 0 else apply(POWER, x, value=float(value))


def to_power_of(x: Tensor, base: float) -> Tensor:
    """A positive number to the power of every element. Raises ShapeError for another number."""
    if not base > 0:
        raise ShapeError(f"{base} ** tensor needs a number above 0")
    return exp(scale(x, logarithm(base)))


def reciprocal(x: Tensor, value: float = 1.0) -> Tensor:
    """``value`` / x, element by element."""
    return div(full((), value, x.dtype), x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x) for every element (Hendrycks & Gimpel 2016; Elfwing, Uchibe & Doya 2018)."""
    return apply(SILU, x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) for every element, which is x itself where exp(x) would overflow."""
    return apply(SOFTPLUS, x)


def over_last(x: Tensor, dim: int, what: str) -> tuple[Tensor, Shape]:
    """x with one dimension moved to the end, and the order of dimensions that moves it back: x itself and () if it is
    there."""
    axis = axis_of(what, x.shape, dim)
    order = tuple(i for i in range(x.ndim) if i != axis) + (axis,)
    back = tuple(sorted(range(x.ndim), key=order.__getitem__))
    return (x, ()) if axis == x.ndim - 1 else (permute(x, order), back)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """log(softmax(x)) over one dimension, the last by default. Raises ShapeError."""
    moved, back = over_last(x, dim, "log_softmax")
    y = apply(LOG_SOFTMAX, moved)
    return permute(y, back) if back else y


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over one dimension, the last by default. Raises ShapeError."""
    moved, back = over_last(x, dim, "softmax")
    y = last_softmax(moved)
    return permute(y, back) if back else y


def absolute(x: Tensor) -> Tensor:
    """|x|, with a gradient of 1 at 0."""
    return where(compare(x, 0, "<"), neg(x), x)


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002 - PyTorch's names
    """x, but ``min`` where it is less and ``max`` where it is more; NaN stays NaN."""
    if min is not None:
        x = masked_fill(x, compare(x, min, "<"), min)
    return x if max is None else masked_fill(x, compare(x, max, ">"), max)


def var(x: Tensor, dim: int | Shape | None = None, *, correction: float = 1.0, keepdim: bool = False) -> Tensor:
    """Variance over ``dim``, all by default: the sum of squared distances from the mean over their number less
    ``correction``; of nothing it is NaN. Raises ShapeError."""
    axes = axes_of("var", x.shape, dim)
    count = prod(x.shape[axis] for axis in axes)
    apart = sub(x, mean(x, axes, keepdim=True))
    spread = mean(mul(apart, apart), axes, keepdim=keepdim)
    rest = count - correction
    return scale(spread, count / rest if rest > 0 else nan)


def std(x: Tensor, dim: int | Shape | None = None, *, correction: float = 1.0, keepdim: bool = False) -> Tensor:
    """Standard deviation, as ``var``."""
    return sqrt(var(x, dim, correction=correction, keepdim=keepdim))


for _name, _function in {"__pow__": power, "pow": power, "__rpow__": to_power_of, "__rtruediv__": reciprocal,
                         "__abs__": absolute, "abs": absolute, "clamp": clamp, "softmax": softmax,
                         "log_softmax": log_softmax, "var": var, "std": std}.items():
    setattr(Tensor, _name, _function)
