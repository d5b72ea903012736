"""PyTorch's elementwise functions that are composed of other operations."""

from __future__ import annotations

from math import log, pi

from minidl.dispatch import apply
from minidl.errors import ShapeError
from minidl.meta import boolean
from minidl.ops.arithmetic import Operand, add, beside, compare, div, logical_xor, mul, promoted, sub
from minidl.ops.choose import CONVERT, convert, logical_and, logical_not, logical_or, masked_fill, where
from minidl.ops.elementwise import neg, scale, shift
from minidl.ops.functions import clamp, reciprocal, softplus
from minidl.ops.library import absolute, cos, erf, exp, expm1, floating, floor, sin, sqrt
from minidl.ops.library import log as natural_log
from minidl.tensor import Tensor

INFINITY = float("inf")


def ceil(x: Tensor) -> Tensor:
    """Return ceil(x), element by element; the gradient is 0."""
    return neg(floor(neg(x)))


def trunc(x: Tensor) -> Tensor:
    """Return every element rounded towards 0; the gradient is 0."""
    return where(compare(x, 0, "<"), ceil(x), floor(x))


def frac(x: Tensor) -> Tensor:
    """Return the fractional part x - trunc(x) of every element."""
    return sub(x, trunc(x))


def round(x: Tensor, *, decimals: int = 0) -> Tensor:  # noqa: A001 - PyTorch's name
    """Return every element rounded to ``decimals`` decimals, halves to the even neighbour. The gradient is 0."""
    if decimals:
        return scale(round(scale(x, 10.0**decimals)), 10.0**-decimals)
    if not x.dtype.floating:
        return x.clone()
    below = floor(x)
    rest = sub(x, below)
    half = scale(below, 0.5)
    odd = compare(half, floor(half), "!=")
    up = logical_or(compare(rest, 0.5, ">"), logical_and(compare(rest, 0.5, "=="), odd))
    return where(up, shift(below, 1.0), below)


def rsqrt(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x), element by element."""
    return reciprocal(sqrt(x))


def square(x: Tensor) -> Tensor:
    """Return x * x, element by element; booleans give int64."""
    x = convert(x, beside(x.dtype, 2))
    return mul(x, x)


def tan(x: Tensor) -> Tensor:
    """Return the tangent of every element, in radians."""
    return div(sin(x), cos(x))


def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of every element, (u + u / (u + 1)) / 2 with u = expm1(x), accurate near 0."""
    u = expm1(absolute(floating(x)))
    y = scale(add(u, div(u, shift(u, 1.0))), 0.5)
    y = where(compare(u, INFINITY, "=="), u, y)
    return where(compare(x, 0, "<"), neg(y), y)


def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine of every element."""
    u = exp(absolute(floating(x)))
    return scale(add(u, reciprocal(u)), 0.5)


def log2(x: Tensor) -> Tensor:
    """Return the logarithm to base 2 of every element."""
    return scale(natural_log(x), 1.0 / log(2.0))


def log10(x: Tensor) -> Tensor:
    """Return the logarithm to base 10 of every element."""
    return scale(natural_log(x), 1.0 / log(10.0))


def exp2(x: Tensor) -> Tensor:
    """Return 2 ** x, element by element."""
    return 2.0 ** floating(x)


def erfc(x: Tensor) -> Tensor:
    """Return 1 - erf(x), element by element, by that formula: 0 where erf(x) rounds to 1."""
    return shift(neg(erf(x)), 1.0)


def deg2rad(x: Tensor) -> Tensor:
    """Return angles in radians, given in degrees."""
    return scale(floating(x), pi / 180.0)


def rad2deg(x: Tensor) -> Tensor:
    """Return angles in degrees, given in radians."""
    return scale(floating(x), 180.0 / pi)


def isnan(x: Tensor) -> Tensor:
    """Return booleans that are True where x is NaN."""
    return compare(x, x, "!=")


def isinf(x: Tensor) -> Tensor:
    """Return booleans that are True where x is infinite, of either sign."""
    return compare(absolute(x), INFINITY, "==") if x.dtype.floating else compare(x, x, "!=")


def isfinite(x: Tensor) -> Tensor:
    """Return booleans that are True where x is neither infinite nor NaN."""
    return compare(absolute(x), INFINITY, "<") if x.dtype.floating else compare(x, x, "==")


LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38,
           "float16": 65504.0}


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return x with NaN and infinities replaced, by default by 0 and by the largest finite numbers of x's dtype."""
    if not x.dtype.floating:
        return x.clone()
    most = LARGEST[x.dtype.name]
    x = masked_fill(x, isnan(x), nan)
    x = masked_fill(x, compare(x, INFINITY, "=="), most if posinf is None else posinf)
    return masked_fill(x, compare(x, -INFINITY, "=="), -most if neginf is None else neginf)


def lerp(start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Return start + weight * (end - start), with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    return add(start, mul(sub(end, start), weight))


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    """Return x + value * a * b, with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    return add(x, mul(a, b), alpha=value)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    """Return x + value * a / b, with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    return add(x, div(a, b), alpha=value)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """Return sqrt(a^2 + b^2), with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    return sqrt(add(mul(a, a), mul(b, b)))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """Return log(exp(a) + exp(b)), without overflow. Raises ShapeError for a misfit of shapes or dtypes."""
    apart = absolute(sub(a, b))
    apart = where(isnan(apart), mul(apart, 0.0), apart)  # the difference of two equal infinities
    return add(where(compare(a, b, ">="), a, b), softplus(neg(apart)))


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return log(x / (1 - x)); ``eps`` first limits x to [eps, 1 - eps]."""
    if eps is not None:
        x = floating(x)
        x = masked_fill(masked_fill(x, compare(x, 1.0 - eps, ">"), 1.0 - eps), compare(x, eps, "<"), eps)
    return natural_log(div(x, shift(neg(x), 1.0)))


def _as_booleans(x: Tensor) -> Tensor:
    return x if x.dtype is boolean else compare(x, 0, "!=")


def logical_and_of(a: Tensor, b: Tensor) -> Tensor:
    """Return booleans that are True where a and b are both nonzero. Raises ShapeError."""
    return logical_and(_as_booleans(a), _as_booleans(b))


def logical_or_of(a: Tensor, b: Tensor) -> Tensor:
    """Return booleans that are True where a or b is nonzero. Raises ShapeError."""
    return logical_or(_as_booleans(a), _as_booleans(b))


def logical_xor_of(a: Tensor, b: Tensor) -> Tensor:
    """Return booleans that are True where exactly one of a and b is nonzero. Raises ShapeError."""
    return logical_xor(_as_booleans(a), _as_booleans(b))


def sinc(x: Tensor) -> Tensor:
    """Return sin(pi x) / (pi x), element by element; 1 at 0."""
    zero = compare(x, 0, "==")
    turned = scale(masked_fill(floating(x), zero, 1.0), pi)
    return masked_fill(div(sin(turned), turned), zero, 1.0)


def where_of(condition: Tensor, a: Operand | None = None, b: Operand | None = None) -> Tensor:
    """Return a where the condition is true, b elsewhere, in their common dtype. Raises ShapeError."""
    if a is None or b is None:
        raise ShapeError("where takes a condition and two operands; nonzero(mask, as_tuple=True) gives positions")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return where(condition, *promoted("where", a, b))
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        first = convert(masked_fill(apply(CONVERT, condition, dtype=beside(boolean, a)), condition, a),
                        beside(beside(boolean, a), b))
        return masked_fill(first, logical_not(condition), b)
    return where(condition, a, b)


FUNCTIONS = {
    "ceil": ceil, "trunc": trunc, "fix": trunc, "frac": frac, "round": round, "rsqrt": rsqrt, "square": square,
    "tan": tan, "sinh": sinh, "cosh": cosh, "log2": log2, "log10": log10, "exp2": exp2, "erfc": erfc,
    "deg2rad": deg2rad, "rad2deg": rad2deg, "isnan": isnan, "isinf": isinf, "isfinite": isfinite,
    "nan_to_num": nan_to_num, "lerp": lerp, "addcmul": addcmul, "addcdiv": addcdiv, "hypot": hypot,
    "logaddexp": logaddexp, "logit": logit, "logical_and": logical_and_of, "logical_or": logical_or_of,
    "logical_xor": logical_xor_of, "logical_not": logical_not, "sinc": sinc, "reciprocal": reciprocal,
    "clip": clamp, "negative": neg, "absolute": absolute,
}
"""PyTorch's name -> function; each is also a method of tensors."""
