"""What functions on tensors take: axes and numbers, checked before anything runs; and whether a tensor may be its own
view. Knows no operation."""

from __future__ import annotations

import math

from minidl.context import current
from minidl.errors import ShapeError, WrongKind
from minidl.meta import DType, Meta, Shape, boolean, uint8
from minidl.tensor import Tensor

EXACT = 1 << 53  # integers up to here are floats, too, which is what numbers are handed on as


def axis_of(what: str, shape: Shape, axis: int) -> int:
    """An axis from 0; a negative one counts from the end. Raises ShapeError outside of the shape."""
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"{what}: there is no axis {axis} of {list(shape)}")
    return axis % len(shape)


def axes_of(what: str, shape: Shape, axes: int | Shape | None) -> Shape:
    """Several axes from 0, in the given order; all for None. Raises ShapeError, also if one comes twice."""
    if axes is None:
        return tuple(range(len(shape)))
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    if not shape and set(named) <= {0, -1}:
        return ()  # a number has the axes of a vector of one element, and none to work on
    found = tuple(axis_of(what, shape, a) for a in named)
    if len(set(found)) < len(found):
        raise ShapeError(f"{what}: an axis of {list(shape)} comes twice in {list(named)}")
    return found


def numbers(x: Meta) -> Meta:
    """x itself. Raises ShapeError for booleans, which no arithmetic is done with."""
    if x.dtype is boolean:
        raise ShapeError(f"{x}: booleans are no numbers to compute with: x.to(dtype) makes 0 and 1 of them")
    return x


def number_for(what: str, x: Meta, value: float) -> float:
    """A number that is to be added to each element, or multiplied with it.

    Raises ShapeError for integers where it is a fraction, or larger than their type holds.
    """
    plain_number(what, value)
    if not x.dtype.floating and (not math.isfinite(value) or value != int(value) or abs(value) > EXACT
                                 or abs(value) >= _beyond(x.dtype)):
        raise ShapeError(f"{what}: {x} with {value} is no {x.dtype.name}: upload it with a floating dtype")
    return float(value)


def plain_number(what: str, value: object) -> float:
    """A number as a float. Raises WrongKind for anything else, for a tensor, too."""
    if isinstance(value, Tensor):
        raise WrongKind(f"{what} takes a number here, not a tensor, whose gradient would be lost: x.item() reads one")
    if not isinstance(value, int | float) and not hasattr(value, "dtype"):
        raise WrongKind(f"{what} takes a number, not a {type(value).__name__}")
    return float(value)  # type: ignore[arg-type]


def _beyond(dtype: DType) -> int:
    """The least positive integer that a dtype of integers does not hold."""
    return 2 if dtype is boolean else 1 << (8 * dtype.itemsize - (dtype is not uint8))


def reciprocal(value: float) -> float:
    """1 / value as on any device: infinite for 0."""
    return 1.0 / value if value else math.copysign(math.inf, value)


def loses_gradient(x: Tensor) -> bool:
    """Whether what is made of x now is not differentiated, though x is: then it must not be x itself."""
    return x.requires_grad and not current().grad_enabled
