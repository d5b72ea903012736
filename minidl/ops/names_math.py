"""PyTorch's elementwise functions that are composed of other operations."""

from math import log, pi

from minidl.dispatch import apply
from minidl.errors import ShapeError
from minidl.meta import boolean
from minidl.ops.arithmetic import Operand, add, beside, compare, div, logical_xor, mul, promoted, sub
from minidl.ops.choose import CONVERT, convert, logical_and, logical_not, logical_or, masked_fill, where
from minidl.ops.elementwise import neg, scale, shift
from minidl.ops.functions import clamp, reciprocal, softplus
from minidl.ops.library import absolute, cos, erf, exp, expm1, floating, floor, log1p, maximum, sin, sqrt
from minidl.ops.library import log as natural_log
from minidl.ops.shape import detach
from minidl.tensor import Tensor

INFINITY = float("inf")


def ceil(input: Tensor) -> Tensor:
    """Return ceil(input), element by element; the gradient is 0."""
    return neg(floor(neg(input)))


def trunc(input: Tensor) -> Tensor:
    """Return every element rounded towards 0; the gradient is 0."""
    return where(compare(input, 0, "<"), ceil(input), floor(input))


def frac(input: Tensor) -> Tensor:
    """Return the fractional part input - trunc(input) of every element."""
    return sub(input, trunc(input))


def round(input: Tensor, *, decimals: int = 0) -> Tensor:  # noqa: A001 - PyTorch's name
    """Return every element rounded to ``decimals`` decimals, halves to the even neighbour. The gradient is 0."""
    if decimals:
        return scale(round(scale(input, 10.0**decimals)), 10.0**-decimals)
    if not input.dtype.floating:
        return input.clone()
    below = floor(input)
    rest = sub(input, below)
    half = scale(below, 0.5)
    odd = compare(half, floor(half), "!=")
    up = logical_or(compare(rest, 0.5, ">"), logical_and(compare(rest, 0.5, "=="), odd))
    return where(up, shift(below, 1.0), below)


def rsqrt(input: Tensor) -> Tensor:
    """Return 1 / sqrt(input), element by element."""
    return reciprocal(sqrt(input))


def square(input: Tensor) -> Tensor:
    """Return input * input, element by element; booleans give int64."""
    input = convert(input, beside(input.dtype, 2))
    return mul(input, input)


def tan(input: Tensor) -> Tensor:
    """Return the tangent of every element, in radians."""
    return div(sin(input), cos(input))


def sinh(input: Tensor) -> Tensor:
    """Return the hyperbolic sine of every element, (expm1(input) - expm1(-input)) / 2, accurate near 0."""
    x = floating(input)
    return scale(sub(expm1(x), expm1(neg(x))), 0.5)


def cosh(input: Tensor) -> Tensor:
    """Return the hyperbolic cosine of every element."""
    u = exp(absolute(floating(input)))
    return scale(add(u, reciprocal(u)), 0.5)


def log2(input: Tensor) -> Tensor:
    """Return the logarithm to base 2 of every element."""
    return scale(natural_log(input), 1.0 / log(2.0))


def log10(input: Tensor) -> Tensor:
    """Return the logarithm to base 10 of every element."""
    return scale(natural_log(input), 1.0 / log(10.0))


def exp2(input: Tensor) -> Tensor:
    """Return 2 ** input, element by element."""
    return 2.0 ** floating(input)


def erfc(input: Tensor) -> Tensor:
    """Return 1 - erf(input), element by element, by that formula: 0 where erf(input) rounds to 1."""
    return shift(neg(erf(input)), 1.0)


def deg2rad(input: Tensor) -> Tensor:
    """Return angles in radians, given in degrees."""
    return scale(floating(input), pi / 180.0)


def rad2deg(input: Tensor) -> Tensor:
    """Return angles in degrees, given in radians."""
    return scale(floating(input), 180.0 / pi)


def isnan(input: Tensor) -> Tensor:
    """Return booleans that are True where input is NaN."""
    return compare(input, input, "!=")


def isinf(input: Tensor) -> Tensor:
    """Return booleans that are True where input is infinite, of either sign."""
    return compare(absolute(input), INFINITY, "==") if input.dtype.floating else compare(input, input, "!=")


def isfinite(input: Tensor) -> Tensor:
    """Return booleans that are True where input is neither infinite nor NaN."""
    return compare(absolute(input), INFINITY, "<") if input.dtype.floating else compare(input, input, "==")


LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38,
           "float16": 65504.0}


def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return input with NaN and infinities replaced.
    By default they become 0 and the largest finite numbers of input's dtype."""
    if not input.dtype.floating:
        return input.clone()
    most = LARGEST[input.dtype.name]
    input = masked_fill(input, isnan(input), nan)
    input = masked_fill(input, compare(input, INFINITY, "=="), most if posinf is None else posinf)
    return masked_fill(input, compare(input, -INFINITY, "=="), -most if neginf is None else neginf)


def lerp(start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Return start + weight * (end - start), with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    return add(start, mul(sub(end, start), weight))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Return input + value * tensor1 * tensor2, with broadcasting.
    Raises ShapeError for a misfit of shapes or dtypes."""
    return add(input, mul(tensor1, tensor2), alpha=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Return input + value * tensor1 / tensor2, with broadcasting.
    Raises ShapeError for a misfit of shapes or dtypes."""
    return add(input, div(tensor1, tensor2), alpha=value)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """Return sqrt(input^2 + other^2), with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    size = detach(maximum(absolute(input), absolute(other)))
    size = masked_fill(size, logical_or(compare(size, 0, "=="), compare(size, INFINITY, "==")), 1.0)
    a, b = div(input, size), div(other, size)  # their squares are neither too large nor too small
    return mul(size, sqrt(add(mul(a, a), mul(b, b))))


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """Return log(exp(input) + exp(other)), without overflow. Raises ShapeError for a misfit of shapes or dtypes."""
    larger = compare(input, other, ">=")
    apart = where(larger, sub(other, input), sub(input, other))
    equal = logical_and(compare(input, other, "=="), isinf(input))
    return add(where(larger, input, other), softplus(masked_fill(apart, equal, 0.0)))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """Return log(input / (1 - input)); ``eps`` first limits input to [eps, 1 - eps]."""
    if eps is not None:
        input = floating(input)
        below = masked_fill(input, compare(input, 1.0 - eps, ">"), 1.0 - eps)
        input = masked_fill(below, compare(input, eps, "<"), eps)
    return sub(natural_log(input), log1p(neg(input)))


def _as_booleans(x: Tensor) -> Tensor:
    return x if x.dtype is boolean else compare(x, 0, "!=")


def logical_and_of(input: Tensor, other: Tensor) -> Tensor:
    """Return booleans that are True where input and other are both nonzero. Raises ShapeError on a misfit."""
    return logical_and(_as_booleans(input), _as_booleans(other))


def logical_or_of(input: Tensor, other: Tensor) -> Tensor:
    """Return booleans that are True where input or other is nonzero. Raises ShapeError if they do not broadcast."""
    return logical_or(_as_booleans(input), _as_booleans(other))


def logical_xor_of(input: Tensor, other: Tensor) -> Tensor:
    """Return booleans that are True where exactly one of input and other is nonzero. Misfits raise ShapeError."""
    return logical_xor(_as_booleans(input), _as_booleans(other))


def sinc(input: Tensor) -> Tensor:
    """Return sin(pi input) / (pi input), element by element; 1 at 0."""
    zero = compare(input, 0, "==")
    turned = scale(masked_fill(floating(input), zero, 1.0), pi)
    return masked_fill(div(sin(turned), turned), zero, 1.0)


def where_of(condition: Tensor, a: Operand | None = None, b: Operand | None = None) -> Tensor:
    """Return a where the condition is true, b elsewhere, in their common dtype.
    Raises ShapeError without a or b, for a condition that is not boolean, and for a misfit of shapes or dtypes."""
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
