"""Elementwise mathematical functions: sin, erf, powers of two tensors, signs, maximum and minimum of two tensors.

At a kink or jump the gradient is PyTorch's: 0 for |x| at 0, one half for each of two equal operands of ``maximum``, 0
for ``sign`` and ``floor`` everywhere.
"""

from collections.abc import Callable
from math import pi

from minidl.dispatch import apply, donate
from minidl.meta import DType, Meta, Shape, boolean, float32
from minidl.op import Op
from minidl.ops.choose import compare, convert, masked_fill, where
from minidl.ops.elementwise import (
    BROADCAST, EITHER, FIRST, div, mul, neg, numbers_like, same_dtype, scale, shift, sum_to,
)
from minidl.ops.elementwise import exp as exp_
from minidl.ops.elementwise import log as log_
from minidl.ops.elementwise import sigmoid as sigmoid_
from minidl.ops.elementwise import sqrt as sqrt_
from minidl.ops.elementwise import tanh as tanh_
from minidl.ops.update import full
from minidl.tensor import Gradients, Needs, Tensor


def floating(x: Tensor) -> Tensor:
    """Return x if it is floating, else x converted to float32."""
    return x if x.dtype.floating else convert(x, float32)


def _like_both(a: Meta, b: Meta) -> Meta:
    return same_dtype(a, b)


def _pow_infer(a: Meta, b: Meta) -> Meta:
    return same_dtype(numbers_like(a), b)


def _zero_gradient(needs: Needs, dy: Tensor, *, x_shape: Shape, x_dtype: DType) -> Gradients:
    return (full(x_shape, 0.0, x_dtype),)


def _extreme_vjp(relation: str) -> Callable[..., Gradients]:
    """Return the gradient of maximum ("<") or minimum (">"): dy for the chosen operand, half for each of two equals."""
    other = {"<": ">", ">": "<"}[relation]

    def vjp(needs: Needs, dy: Tensor, a: Tensor, b: Tensor, *, a_shape: Shape, b_shape: Shape) -> Gradients:
        shared = where(compare(a, b, "=="), scale(dy, 0.5), dy)
        da = sum_to(masked_fill(shared, compare(a, b, relation), 0.0), a_shape) if needs[0] else None
        db = sum_to(masked_fill(shared, compare(a, b, other), 0.0), b_shape) if needs[1] else None
        return da, db
    return vjp


def _pow_vjp(needs: Needs, dy: Tensor, a: Tensor, b: Tensor, y: Tensor, *, a_shape: Shape,
             b_shape: Shape) -> Gradients:
    da = db = None
    if needs[0]:
        slope = mul(b, apply(POW, a, shift(b, -1.0)))
        da = sum_to(mul(dy, where(compare(b, 0, "=="), full((), 0.0, b.dtype), slope)), a_shape)
    if needs[1]:  # 0 ** b for b >= 0 is locally constant in b
        slope = mul(y, log_(a))
        flat = where(compare(b, 0, ">="), compare(a, 0, "=="), full((), 0, boolean))
        db = sum_to(mul(dy, masked_fill(slope, flat, 0.0)), b_shape)
    return da, db


ABS = Op("abs", numbers_like, donates=FIRST, exact=True, slices=BROADCAST,
         vjp=lambda needs, dy, x: (mul(donate(dy), sign(x)),))
SIGN = Op("sign", numbers_like, donates=FIRST, exact=True, slices=BROADCAST, vjp=_zero_gradient)
FLOOR = Op("floor", numbers_like, donates=FIRST, slices=BROADCAST, vjp=_zero_gradient)
SIN: Op = Op("sin", numbers_like, donates=FIRST, slices=BROADCAST,
             vjp=lambda needs, dy, x: (mul(donate(dy), cos(donate(x))),))
COS: Op = Op("cos", numbers_like, donates=FIRST, slices=BROADCAST,
             vjp=lambda needs, dy, x: (neg(mul(donate(dy), sin(donate(x)))),))
ERF = Op("erf", numbers_like, donates=FIRST, slices=BROADCAST,
         vjp=lambda needs, dy, x: (mul(donate(dy), scale(exp_(neg(mul(x, x))), 2.0 / pi**0.5)),))
LOG1P = Op("log1p", numbers_like, donates=FIRST, slices=BROADCAST,
           vjp=lambda needs, dy, x: (div(donate(dy), shift(donate(x), 1.0)),))
EXPM1 = Op("expm1", numbers_like, donates=FIRST, slices=BROADCAST,
           vjp=lambda needs, dy, y: (mul(donate(dy), shift(donate(y), 1.0)),))
MAXIMUM = Op("maximum", _like_both, donates=EITHER, exact=True, slices=BROADCAST, vjp=_extreme_vjp("<"))
MINIMUM = Op("minimum", _like_both, donates=EITHER, exact=True, slices=BROADCAST, vjp=_extreme_vjp(">"))
POW = Op("pow", _pow_infer, donates=EITHER, slices=BROADCAST, vjp=_pow_vjp)


def absolute(input: Tensor) -> Tensor:
    """Return |input|, element by element; the gradient at 0 is 0."""
    return apply(ABS, input)


def sign(input: Tensor) -> Tensor:
    """Return the sign of every element: 1, -1, or 0 for 0 and NaN; the gradient is 0."""
    return apply(SIGN, input)


def floor(input: Tensor) -> Tensor:
    """Return floor(input), element by element; the gradient is 0."""
    return apply(FLOOR, input) if input.dtype.floating else input.clone()


def sin(input: Tensor) -> Tensor:
    """Return the sine of every element, in radians."""
    return apply(SIN, floating(input))


def cos(input: Tensor) -> Tensor:
    """Return the cosine of every element, in radians."""
    return apply(COS, floating(input))


def erf(input: Tensor) -> Tensor:
    """Return the error function of every element: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to input."""
    return apply(ERF, floating(input))


def log1p(input: Tensor) -> Tensor:
    """Return log(1 + input), element by element, accurate near 0."""
    return apply(LOG1P, floating(input))


def expm1(input: Tensor) -> Tensor:
    """Return exp(input) - 1, element by element, accurate near 0."""
    return apply(EXPM1, floating(input))


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """Return the larger of two elements, with broadcasting; NaN if one of them is NaN.
    Two equal elements each get half of the gradient. Raises ShapeError on a misfit of shapes or dtypes."""
    return apply(MAXIMUM, input, other)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """Return the smaller of two elements, with broadcasting; NaN if one is NaN. Two equal ones share the gradient."""
    return apply(MINIMUM, input, other)


def pow_of(a: Tensor, b: Tensor) -> Tensor:
    """Return a ** b, element by element, with broadcasting; integers become float32.
    A negative number to a fractional power is NaN. Raises ShapeError on a misfit of shapes or dtypes."""
    if not a.dtype.floating or not b.dtype.floating:
        dtype = a.dtype if a.dtype.floating else b.dtype if b.dtype.floating else float32
        a, b = convert(a, dtype), convert(b, dtype)
    return apply(POW, a, b)


def _of_any_number(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a version of a function that also accepts integers and booleans, as float32."""
    def of_any_number(input: Tensor) -> Tensor:
        return function(floating(input))
    of_any_number.__name__ = function.__name__
    of_any_number.__doc__ = f"{function.__doc__} Integers become float32."
    return of_any_number


exp, log, sqrt, tanh, sigmoid = map(_of_any_number, (exp_, log_, sqrt_, tanh_, sigmoid_))

for _name, _function in {
        "sin": sin, "cos": cos, "erf": erf, "log1p": log1p, "expm1": expm1, "floor": floor, "sign": sign, "exp": exp,
        "log": log, "sqrt": sqrt, "tanh": tanh, "sigmoid": sigmoid, "maximum": maximum, "minimum": minimum}.items():
    setattr(Tensor, _name, _function)
