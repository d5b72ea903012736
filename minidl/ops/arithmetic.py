"""The arithmetic operators of tensors, with PyTorch's type promotion.
Beside a float, integers and booleans become float.

    booleans < uint8 < int32 < int64 < the floating dtypes
A Python number takes the tensor's dtype, unless it is of a higher kind (boolean < integer < float). Unlike in PyTorch,
two different floating dtypes raise an error: an accidental float64 result would take twice the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, inf, nan
from numbers import Real

from minidl.errors import ShapeError
from minidl.meta import DType, boolean, float32, float64, int32, int64, uint8
from minidl.ops import elementwise
from minidl.ops.choose import compare as same_compare
from minidl.ops.choose import convert, logical_and, logical_not, logical_or, masked_fill, where
from minidl.ops.elementwise import broadcast
from minidl.ops.library import absolute, floor, pow_of, sign
from minidl.ops.shape import detach
from minidl.ops.update import full
from minidl.tensor import Tensor

Operand = Tensor | float
Binary = Callable[[Tensor, Operand], Tensor]
RANKS: dict[DType, int] = {boolean: 0, uint8: 1, int32: 2, int64: 3}


def common(what: str, a: DType, b: DType) -> DType:
    """Return the dtype of the result for operands of two dtypes.
    Raises ShapeError, which names the function ``what``, for two different floating dtypes."""
    if a is b:
        return a
    if a.floating and b.floating:
        raise ShapeError(f"dtypes differ: {a.name} and {b.name} in {what}; x.to(dtype) converts")
    if a.floating or b.floating:
        return a if a.floating else b
    return a if RANKS[a] > RANKS[b] else b


def beside(dtype: DType, value: object) -> DType:
    """Return the dtype of the result for a tensor's dtype and a Python number ``value``."""
    if isinstance(value, bool) or dtype.floating:
        return dtype
    if isinstance(value, int):
        return int64 if dtype is boolean else dtype
    integral = getattr(value, "dtype", None)  # a number of NumPy's
    if integral is not None and integral.kind in "iub":
        return int64 if dtype is boolean and integral.kind != "b" else dtype
    return float32


def promoted(what: str, a: Tensor, b: Operand) -> tuple[Tensor, Operand]:
    """Return a and b in their common dtype; b stays a number if it is one.
    Raises ShapeError, which names the function ``what``, for two different floating dtypes (PyTorch converts)."""
    if isinstance(b, Tensor):
        dtype = common(what, a.dtype, b.dtype)
        return convert(a, dtype), convert(b, dtype)
    if not isinstance(b, Real) and not hasattr(b, "__float__"):
        return a, b  # the operation raises the error
    return convert(a, beside(a.dtype, b)), b


def _times(what: str, b: Operand, alpha: float) -> Operand:
    return b if alpha == 1 else mul(b, alpha) if isinstance(b, Tensor) else b * alpha


def add(input: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """Return input + alpha * other, with broadcasting; of booleans, their "or".
    Raises ShapeError for a misfit of shapes or dtypes."""
    input, other = promoted("add", input, _times("add", other, alpha))
    return logical_or(input, _mask(input, other)) if input.dtype is boolean else elementwise.add(input, other)


def sub(input: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """Return input - alpha * other, with broadcasting.
    Raises ShapeError for two tensors of booleans, or a misfit of shapes or dtypes."""
    input, other = promoted("sub", input, _times("sub", other, alpha))
    return elementwise.sub(input, other)


def mul(input: Tensor, other: Operand) -> Tensor:
    """Return input * other, by element, with broadcasting; of booleans, their "and".
    Raises ShapeError for a misfit of shapes or dtypes."""
    input, other = promoted("mul", input, other)
    return logical_and(input, _mask(input, other)) if input.dtype is boolean else elementwise.mul(input, other)


def _mask(a: Tensor, b: Operand) -> Tensor:
    return b if isinstance(b, Tensor) else full((), bool(b), boolean)


def div(input: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """Return input / other, element by element, with broadcasting; the quotient of integers is float32.

    ``rounding_mode``: "floor" is ``//``, "trunc" rounds towards 0; both keep integers, and their gradient is 0.
    Integers are divided as float64, so quotients beyond 2^53 are rounded.
    Raises ShapeError for a misfit of shapes or dtypes, and for another mode.
    """
    input, other = promoted("div", input, other)
    kind = input.dtype
    if not kind.floating:
        fraction = float64 if rounding_mode else float32  # float32 does not represent all integers
        input = convert(input, fraction)
        other = convert(other, fraction) if isinstance(other, Tensor) else other
    if rounding_mode is None:
        return elementwise.div(input, other)
    operands = [x for x in (input, other) if isinstance(x, Tensor) and x.requires_grad]
    input, other = detach(input), detach(other) if isinstance(other, Tensor) else other
    y = elementwise.div(input, other)
    if rounding_mode == "floor":
        y = _floor_of_quotient(y, input, other)
    elif rounding_mode == "trunc":
        y = where(same_compare(y, 0, "<"), elementwise.neg(floor(elementwise.neg(y))), floor(y))
    else:
        raise ShapeError(f"div: rounding_mode must be None, 'floor' or 'trunc', not {rounding_mode!r}")
    for x in operands:  # a gradient of 0, also where y is infinite or NaN
        y = where(full((), 1, boolean), y, x)
    return convert(y, kind)


def _floor_of_quotient(y: Tensor, a: Tensor, b: Operand) -> Tensor:
    """Return floor(y) for y = a / b: -1 if y was rounded to -0, NaN if a is infinite."""
    signs = mul(sign(a), sign(b) if isinstance(b, Tensor) else copysign(1.0, b))
    below = logical_and(same_compare(y, 0, "=="), same_compare(signs, 0, "<"))
    y = masked_fill(floor(y), below, -1.0)
    return masked_fill(y, same_compare(absolute(a), inf, "=="), nan)


def floor_divide(input: Tensor, other: Operand) -> Tensor:
    """Return floor(input / other), by element, with broadcasting.
    Raises ShapeError for a misfit of shapes or dtypes."""
    return div(input, other, rounding_mode="floor")


def remainder(input: Tensor, other: Operand) -> Tensor:
    """Return input - other * floor(input / other), element by element, with other's sign, like ``%``.
    Raises ShapeError for a misfit of shapes or dtypes. Quotients of integers beyond 2^53 are rounded.
    For floats below 64 bits it is computed in the next wider dtype, because the difference of two large numbers would
    lose all digits.
    """
    input, other = promoted("remainder", input, other)
    kind = input.dtype
    if kind.floating and kind is not float64:
        more = float64 if kind is float32 else float32
        input, other = convert(input, more), convert(other, more) if isinstance(other, Tensor) else other
    quotient = floor_divide(input, other)
    whole = mul(quotient, other)
    if kind.floating:  # 0 times infinity
        whole = masked_fill(whole, same_compare(quotient, 0, "=="), 0.0)
    return convert(sub(input, whole), kind)


def power(a: Tensor, exponent: Operand) -> Tensor:
    """Return a ** exponent, element by element, for a number or a tensor; integers to a fractional power are float32.
    Raises ShapeError for integers to a negative whole number; in a tensor, such powers give 1, -1 or 0."""
    from minidl.ops.functions import power as power_of_number  # functions.py needs the arithmetic above
    if isinstance(exponent, Tensor):
        a, b = promoted("pow", a, exponent)
        assert isinstance(b, Tensor)
        if a.dtype.floating:
            return pow_of(a, b)
        return _whole_power(a, b)
    return power_of_number(convert(a, beside(a.dtype, exponent)), exponent)


def _whole_power(a: Tensor, exponent: Tensor) -> Tensor:
    """Return integers to integer powers, by squaring with wrap-around; negative powers are truncated to 1, -1 or 0."""
    bits = 8 * a.dtype.itemsize - (a.dtype is not uint8)
    shape = broadcast(a.shape, exponent.shape)
    y, square, rest = full(shape, 1, a.dtype), a, exponent
    for _ in range(bits):
        half = floor_divide(rest, 2)
        y = where(same_compare(elementwise.mul(half, 2), rest, "!="), elementwise.mul(y, square), y)
        square, rest = elementwise.mul(square, square), half
    odd = same_compare(remainder(exponent, 2), 0, "!=")
    sign = where(same_compare(a, 1, "=="), full(shape, 1, a.dtype), where(
        same_compare(a, -1, "=="), where(odd, full(shape, -1, a.dtype), full(shape, 1, a.dtype)),
        full(shape, 0, a.dtype))) if a.dtype is not uint8 else y
    return where(same_compare(exponent, 0, "<"), sign, y)


def _reverse_sub(a: Tensor, b: Operand) -> Tensor:
    return add(elementwise.neg(promoted("sub", a, b)[0]), b)


def _reverse_div(a: Tensor, b: Operand) -> Tensor:
    if isinstance(b, Tensor):
        return div(b, a)
    a = a if a.dtype.floating else convert(a, float32)
    return elementwise.div(full((), b, a.dtype), a)


def _reverse_pow(a: Tensor, base: Operand) -> Tensor:
    if isinstance(base, Tensor):
        return power(base, a)
    a = convert(a, beside(a.dtype, base))
    return power(full((), base, a.dtype), a)


def _reverse_floor_divide(a: Tensor, b: Operand) -> Tensor:
    if isinstance(b, Tensor):
        return floor_divide(b, a)
    return floor_divide(full((), b, beside(a.dtype, b)), a)


def _reverse_remainder(a: Tensor, b: Operand) -> Tensor:
    if isinstance(b, Tensor):
        return remainder(b, a)
    return remainder(full((), b, beside(a.dtype, b)), a)


def rsub(a: Tensor, b: Operand, *, alpha: float = 1) -> Tensor:
    """Return b - alpha * a, with broadcasting. Raises ShapeError for a misfit of shapes or dtypes."""
    return _reverse_sub(mul(a, alpha) if alpha != 1 else a, b)


def compare(a: Tensor, b: Operand, relation: str) -> Tensor:
    """Return booleans ``a relation b`` for a relation such as "<", by element, after conversion to one dtype."""
    return same_compare(*promoted(relation, a, b), relation)


def _named(relation: str) -> Binary:
    def function(input: Tensor, other: Operand) -> Tensor:
        return compare(input, other, relation)
    function.__doc__ = f"Return booleans a {relation} b, by element, with broadcasting. Raises ShapeError on a misfit."
    return function


eq, ne, lt, le, gt, ge = map(_named, ("==", "!=", "<", "<=", ">", ">="))


def invert(x: Tensor) -> Tensor:
    """Return the negation of booleans, or the bitwise complement of integers (-1 - x). Raises ShapeError for floats."""
    if x.dtype is boolean:
        return logical_not(x)
    if x.dtype.floating:
        raise ShapeError(f"~ is for booleans and integers, not {x.meta}")
    ones = full((), 255 if x.dtype is uint8 else -1, x.dtype)
    return elementwise.sub(ones, x)


def _mask_operator(sign: str, function: Callable[[Tensor, Tensor], Tensor]) -> Binary:
    def operator(a: Tensor, b: Operand) -> Tensor:
        b = _mask(a, b) if isinstance(b, bool) else b
        if not isinstance(b, Tensor) or a.dtype is not boolean or b.dtype is not boolean:
            other = b.dtype.name if isinstance(b, Tensor) else type(b).__name__
            raise ShapeError(f"{sign} needs two boolean tensors, not {a.dtype.name} and {other}; x.bool() converts")
        return function(a, b)
    return operator


def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    """Return booleans that are True where exactly one of a and b, two boolean tensors, is True."""
    return same_compare(a, b, "!=")


def _operator(relation: str) -> Binary:
    def compared(a: Tensor, b: Operand) -> Tensor:
        comparable = isinstance(b, Tensor | Real) or hasattr(b, "__array__")
        return compare(a, b, relation) if comparable else NotImplemented  # Python then compares identities
    return compared


and_, or_, xor = _mask_operator("&", logical_and), _mask_operator("|", logical_or), _mask_operator("^", logical_xor)
_METHODS: dict[str, Callable[..., Tensor]] = {
    "__add__": add, "__radd__": add, "__sub__": sub, "__rsub__": _reverse_sub, "__mul__": mul, "__rmul__": mul,
    "__truediv__": div, "__rtruediv__": _reverse_div, "__floordiv__": floor_divide,
    "__rfloordiv__": _reverse_floor_divide, "__mod__": remainder, "__rmod__": _reverse_remainder, "__pow__": power,
    "__rpow__": _reverse_pow, "__invert__": invert, "__and__": and_, "__rand__": and_, "__or__": or_, "__ror__": or_,
    "__xor__": xor, "__rxor__": xor,
    **{name: _operator(relation) for name, relation in (("__eq__", "=="), ("__ne__", "!="), ("__lt__", "<"),
                                                        ("__le__", "<="), ("__gt__", ">"), ("__ge__", ">="))},
    "eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge,
    "add": add, "sub": sub, "mul": mul, "div": div, "pow": power, "floor_divide": floor_divide,
    "remainder": remainder, "true_divide": div, "subtract": sub, "multiply": mul, "divide": div,
}
for _name, _function in _METHODS.items():
    setattr(Tensor, _name, _function)
