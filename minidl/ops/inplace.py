"""In-place operators and methods: ``x += y``, ``x.add_(y, alpha=2)``, ``x.clamp_(0, 1)``; each returns x.

Without a gradient the result is written to x's bytes, so every view and alias of x sees it. With a gradient no bytes
are overwritten, because the backward pass may need them: the handle x is rebound to the result and its graph. If
another handle shares x's bytes, this would be visible, so it raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidl.context import current
from minidl.dispatch import apply_all, donate
from minidl.errors import ShapeError, UserError
from minidl.meta import Meta, boolean
from minidl.ops import elementwise, functions
from minidl.ops.arithmetic import Operand, add, div, mul, power, sub
from minidl.ops.arithmetic import and_ as both
from minidl.ops.arithmetic import or_ as either
from minidl.ops.choose import convert, masked_fill
from minidl.ops.elementwise import broadcast, expand
from minidl.ops.library import absolute
from minidl.ops.shape import CONTIGUOUS
from minidl.ops.update import ADD_, COPY_, full
from minidl.ops.update import fill_ as overwrite
from minidl.tensor import GONE, Tensor

Binary = Callable[[Tensor, Any], Tensor]


def written(x: Tensor, function: Callable[[Tensor], Tensor], *operands: object) -> Tensor:
    """Set x = function(x) in place; ``operands`` are the other tensors that the function reads. Returns x.
    Raises UserError for a leaf that requires a gradient outside ``no_grad()``, and for a tensor with a gradient whose
    bytes another handle shares; ShapeError for a result of another shape or of a dtype that does not convert to x's."""
    if _differentiates(x, operands):
        return _rebind(x, function, may_donate=False)
    apply_all(COPY_, x, _fitting(x.meta, function(x)))
    return x


def _differentiates(x: Tensor, operands: tuple[object, ...]) -> bool:
    """Return True if a gradient flows through a call that reads x and these operands."""
    return current().grad_enabled and any(t.requires_grad for t in (x, *operands) if isinstance(t, Tensor))


def _overwrites(x: Tensor, other: object = None) -> bool:
    """Return True if x can be overwritten without a gradient.
    x may be a leaf that requires one, since no result is computed from it."""
    return not _differentiates(x, (other,)) or (
        x.storage.base.call is None and not (isinstance(other, Tensor) and other.requires_grad))


def _fitting(x: Meta, made: Tensor) -> Tensor:
    """Return a result converted to x's dtype. Raises ShapeError if its shape or dtype does not fit x."""
    if made.shape != x.shape:
        raise ShapeError(f"in place: a result of shape {list(made.shape)} does not fit {list(x.shape)}")
    if made.dtype is x.dtype:
        return made
    if made.dtype.floating and not x.dtype.floating or x.dtype is boolean:
        raise ShapeError(f"in place: a result of {made.dtype.name} does not fit a tensor of {x.dtype.name}")
    return convert(made, x.dtype)


def _rebind(x: Tensor, function: Callable[[Tensor], Tensor], *, may_donate: bool) -> Tensor:
    """Rebind the handle x to function(x), through which a gradient flows. Raises UserError as ``written`` does.
    may_donate: the result may use x's bytes."""
    base = x.storage.base
    if base.requires_grad and base.call is None or x.requires_grad and not x.operation_name:
        raise UserError(f"{x.storage.named()} is a leaf that requires a gradient: write it in place only under "
                        "no_grad()")
    if base.refs - base.saved > 1:
        raise UserError(f"in place: a gradient flows through the result, and {x.storage.named()} shares its bytes with "
                        "another tensor, a view or its base; use the operation that returns a new tensor")
    described = x.meta
    made = _fitting(described, function(donate(x) if may_donate else x))
    if made is not x:
        if x.storage is not GONE:
            x.storage.release()
        x.storage, x.donated, made.storage = made.storage, False, GONE
    return x


def _combined(x: Tensor, other: Operand, function: Binary) -> Tensor:
    """Set x = function(x, other) in place; returns x. Raises UserError, ShapeError in the cases of ``written``."""
    if isinstance(other, Tensor) and broadcast(x.shape, other.shape) != x.shape:
        raise ShapeError(f"in place: {list(other.shape)} does not broadcast to {list(x.shape)}")
    if _differentiates(x, (other,)):
        # Donate x only if the one operation that reads it cannot fail afterwards.
        alike = not isinstance(other, Tensor) or other is not x and other.dtype is x.dtype
        return _rebind(x, lambda y: function(y, other), may_donate=alike and x.dtype.floating)
    apply_all(COPY_, x, _fitting(x.meta, function(x, other)))
    return x


def add_(x: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x += alpha * other, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    if alpha != 1:
        other = mul(other, alpha) if isinstance(other, Tensor) else other * alpha
    if (isinstance(other, Tensor) and other.shape == x.shape and other.dtype is x.dtype
            and not _differentiates(x, (other,))):
        apply_all(ADD_, x, other)
        return x
    return _combined(x, other, add)


def sub_(x: Tensor, other: Operand, *, alpha: float = 1) -> Tensor:
    """x -= alpha * other, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    if alpha != 1:
        other = mul(other, alpha) if isinstance(other, Tensor) else other * alpha
    return _combined(x, other, sub)


def mul_(x: Tensor, other: Operand) -> Tensor:
    """x *= other, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    return _combined(x, other, mul)


def div_(x: Tensor, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """x /= other, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    if rounding_mode:  # reads x more than once
        return written(x, lambda y: div(y, other, rounding_mode=rounding_mode), other)
    return _combined(x, other, div)


def pow_(x: Tensor, exponent: Operand) -> Tensor:
    """x **= exponent, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    return written(x, lambda y: power(y, exponent), exponent)


def and_(x: Tensor, other: Tensor) -> Tensor:
    """x &= other, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    return _combined(x, other, both)


def or_(x: Tensor, other: Tensor) -> Tensor:
    """x |= other, in place; returns x.
    Raises ShapeError on a misfit; if a gradient flows, UserError for a leaf that requires one or for shared bytes."""
    return _combined(x, other, either)


def copy_(x: Tensor, other: Tensor) -> Tensor:
    """Overwrite x with a tensor that broadcasts to it, converted to x's dtype; returns x.
    Values without a gradient may be copied to a leaf that requires one, also outside ``no_grad()``. Raises the errors
    of ``written``."""
    if not _overwrites(x, other):
        return _rebind(x, lambda y: apply_copy(convert(other, x.dtype), y), may_donate=False)
    apply_all(COPY_, x, expand(convert(other, x.dtype), x.shape))
    return x


def apply_copy(other: Tensor, x: Tensor) -> Tensor:
    """Return a copy of ``other`` broadcast to x's shape. Raises ShapeError if it does not broadcast to it."""
    return apply_all(CONTIGUOUS, expand(other, x.shape))[0]


def fill_(x: Tensor, value: Operand) -> Tensor:
    """Overwrite x with a number or a tensor without dimensions; returns x. An integer dtype cuts fractions.
    Raises ShapeError for a tensor with dimensions; UserError for a number that x's dtype cannot hold, and as ``copy_``
    does if x or the tensor has a gradient to pass on."""
    if isinstance(value, Tensor):
        if value.shape:
            raise ShapeError(f"fill_ takes a number or a tensor without dimensions, not {list(value.shape)}")
        return copy_(x, value)
    if not _overwrites(x):
        return _rebind(x, lambda y: full(y.shape, value, y.dtype), may_donate=False)
    overwrite(x, value)
    return x


def zero_(x: Tensor) -> Tensor:
    """Overwrite every element with 0; returns x. Raises UserError as ``fill_`` does."""
    return fill_(x, 0)


def masked_fill_(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Write ``value`` where the mask is true; returns x. Raises the errors of ``add_``."""
    return written(x, lambda y: masked_fill(y, mask, value), value)


def clamp_(x: Tensor, min: functions.Bound = None, max: functions.Bound = None) -> Tensor:  # noqa: A002 - PyTorch's names
    """Limit every element to min..max in place; returns x. Raises the errors of ``add_``; UserError without a bound."""
    return written(x, lambda y: functions.clamp(y, min, max), min, max)


def _in_place(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def method(x: Tensor) -> Tensor:
        return written(x, function)
    method.__name__ = f"{function.__name__}_"
    method.__doc__ = f"{function.__name__}(x), in place; returns x. Raises UserError, ShapeError: see ``written``."
    return method


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": elementwise.neg, "exp": elementwise.exp, "log": elementwise.log, "sqrt": elementwise.sqrt,
    "relu": elementwise.relu, "tanh": elementwise.tanh, "sigmoid": elementwise.sigmoid, "abs": absolute,
}
"""Functions of one tensor that also have an in-place method: name of the function -> function."""

_METHODS: dict[str, Callable[..., Tensor]] = {
    "add_": add_, "sub_": sub_, "mul_": mul_, "div_": div_, "pow_": pow_, "copy_": copy_, "fill_": fill_,
    "zero_": zero_, "masked_fill_": masked_fill_, "clamp_": clamp_,
    "__iadd__": add_, "__isub__": sub_, "__imul__": mul_, "__itruediv__": div_, "__ipow__": pow_, "__iand__": and_,
    "__ior__": or_,
    **{f"{name}_": _in_place(function) for name, function in UNARY.items()},
}
for _name, _function in _METHODS.items():
    setattr(Tensor, _name, _function)
