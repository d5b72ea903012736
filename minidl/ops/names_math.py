"""Elementwise functions of PyTorch's that are composed of other operations, under its names."""

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
    """The smallest integer that is not below, for every element; the gradient is 0."""
    return neg(floor(neg(x)))


def trunc(x: Tensor) -> Tensor:
    """Every element without its fraction; the gradient is 0."""
    return where(compare(x, 0, "<"), ceil(x), floor(x))


def frac(x: Tensor) -> Tensor:
    """The fraction of every element, of its sign."""
    return sub(x, trunc(x))


def round(x: Tensor, *, decimals: int = 0) -> Tensor:  # noqa: A001 - PyTorch's name
    """The nearest integer, the even one of two, for every element; with ``decimals`` so many digits after the point.

    The gradient is 0.
    """
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
    """1 / sqrt(x) for every element."""
    return reciprocal(sqrt(x))


def square(x: Tensor) -> Tensor:
    """Every element times itself; of booleans int64."""
    x = convert(x, beside(x.dtype, 2))
    return mul(x, x)


def tan(x: Tensor) -> Tensor:
    """Tangent of every element, in radians."""
    return div(sin(x), cos(x))


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine of every element: (u + u / (u + 1)) / 2 with u = exp(x) - 1, exact near 0."""
    u = expm1(absolute(floating(x)))
    y = scale(add(u, div(u, shift(u, 1.0))), 0.5)
    y = where(compare(u, INFINITY, "=="), u, y)
    return where(compare(x, 0, "<"), neg(y), y)


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine of every element."""
    u = exp(absolute(floating(x)))
    return scale(add(u, reciprocal(u)), 0.5)


def log2(x: Tensor) -> Tensor:
    """Logarithm to base 2 of every element."""
    return scale(natural_log(x), 1.0 / log(2.0))


def log10(x: Tensor) -> Tensor:
    """Logarithm to base 10 of every element."""
    return scale(natural_log(x), 1.0 / log(10.0))


def exp2(x: Tensor) -> Tensor:
    """2 to the power of every element."""
    return 2.0 ** floating(x)


def erfc(x: Tensor) -> Tensor:
    """1 - erf(x) for every element; it is 0 where erf(x) rounds to 1."""
    return shift(neg(erf(x)), 1.0)


def deg2rad(x: Tensor) -> Tensor:
    """Degrees in radians."""
    return scale(floating(x), pi / 180.0)


def rad2deg(x: Tensor) -> Tensor:
    """Radians in degrees."""
    return scale(floating(x), 180.0 / pi)


def isnan(x: Tensor) -> Tensor:
    """True where x is NaN."""
    return compare(x, x, "!=")


def isinf(x: Tensor) -> Tensor:
    """True where x is infinite, of either sign."""
    return compare(absolute(x), INFINITY, "==") if x.dtype.floating else compare(x, x, "!=")


def isfinite(x: Tensor) -> Tensor:
    """True where x is neither infinite nor NaN."""
    return compare(absolute(x), INFINITY, "<") if x.dtype.floating else compare(x, x, "==")


LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38,
           "float16": 65504.0}


def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with other numbers in the place of NaN and infinities: 0, and the largest of x's dtype, by default."""
    if not x.dtype.floating:
        return x.clone()
    most = LARGEST[x.dtype.name]
    x = masked_fill(x, isnan(x), nan)
    x = masked_fill(x, compare(x, INFINITY, "=="), most if posinf is None else posinf)
    return masked_fill(x, compare(x, -INFINITY, "=="), -most if neginf is None else neginf)


def lerp(start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """start + weight (end - start). Raises ShapeError."""
    return add(start, mul(sub(end, start), weight))


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    """x + value a b. Raises ShapeError."""
    return add(x, mul(a, b), alpha=value)


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    """x + value a / b. Raises ShapeError."""
    return add(x, div(a, b), alpha=value)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a^2 + b^2). Raises ShapeError."""
    return sqrt(add(mul(a, a), mul(b, b)))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), without overflow. Raises ShapeError."""
    apart = absolute(sub(a, b))
    apart = where(isnan(apart), mul(apart, 0.0), apart)  # of two equal infinities
    return add(where(compare(a, b, ">="), a, b), softplus(neg(apart)))


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x kept between eps and 1 - eps if there is one."""
    if eps is not None:
        x = floating(x)
        x = masked_fill(masked_fill(x, compare(x, 1.0 - eps, ">"), 1.0 - eps), compare(x, eps, "<"), eps)
    return natural_log(div(x, shift(neg(x), 1.0)))


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype is boolean else compare(x, 0, "!=")


def logical_and_of(a: Tensor, b: Tensor) -> Tensor:
    """True where both are not 0. Raises ShapeError."""
    return logical_and(_truth(a), _truth(b))


def logical_or_of(a: Tensor, b: Tensor) -> Tensor:
    """True where one is not 0. Raises ShapeError."""
    return logical_or(_truth(a), _truth(b))


def logical_xor_of(a: Tensor, b: Tensor) -> Tensor:
    """True where just one is not 0. Raises ShapeError."""
    return logical_xor(_truth(a), _truth(b))


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x) for every element, 1 at 0."""
    zero = compare(x, 0, "==")
    turned = scale(masked_fill(floating(x), zero, 1.0), pi)
    return masked_fill(div(sin(turned), turned), zero, 1.0)


def where_of(condition: Tensor, a: Operand | None = None, b: Operand | None = None) -> Tensor:
    """a where the condition is true, b elsewhere, in one dtype of both. Raises ShapeError."""
    if a is None or b is None:
        raise ShapeError("where takes a condition and what to choose from: nonzero(mask, as_tuple=True) has places")
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
"""By the names of PyTorch, as functions and as methods."""
