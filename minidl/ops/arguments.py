"""Checks of arguments, such as axes and numbers, that functions on tensors make before any call."""

import math
from collections.abc import Iterable
from operator import index

from minidl.context import current
from minidl.errors import ShapeError, UserError, WrongKind
from minidl.meta import DType, Meta, Shape, boolean, float64, int64, uint8
from minidl.tensor import Tensor

TYPES: dict[type, DType] = {float: float64, int: int64, bool: boolean}  # the dtypes that Python's types stand for
EXACT = 1 << 53  # integers up to here are exact as Python floats, the type in which attributes are passed


def whole(sizes: Iterable[object]) -> Shape:
    """Return sizes as Python's integers: NumPy's overflow in the memory's arithmetic, and 4.0 would be taken for 4.
    Raises WrongKind for a size that is no integer."""
    sizes = tuple(sizes)
    for size in sizes:  # of Python's integers, which almost all are, this takes less time than a conversion
        if type(size) is not int:
            break
    else:
        return sizes  # type: ignore[return-value]
    try:
        return tuple(map(index, sizes))  # type: ignore[arg-type]  # raises for other objects
    except TypeError:
        raise WrongKind(f"sizes are integers, not {list(sizes)}") from None


def axis_of(what: str, shape: Shape, axis: int) -> int:
    """Return an axis as a non-negative number; a negative axis counts from the end.
    Raises ShapeError, which names the function ``what``, if the axis is out of range."""
    if type(axis) is not int:  # 1.0 and NumPy's 1 equal 1, so a kernel would get them
        axis, = whole((axis,))
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"{what}: there is no axis {axis} of {list(shape)}")
    return axis % len(shape)


def axes_of(what: str, shape: Shape, axes: int | Shape | None) -> Shape:
    """Return axes as non-negative numbers, in the given order; all axes for None.
    Raises ShapeError for an axis that is repeated or out of range."""
    if axes is None:
        return tuple(range(len(shape)))
    named = whole(axes) if hasattr(axes, "__iter__") else (axes,)
    if not shape and set(named) <= {0, -1}:
        return ()  # a tensor without dimensions accepts the axes of a vector
    found = tuple(axis_of(what, shape, a) for a in named)
    if len(set(found)) < len(found):
        raise ShapeError(f"{what}: an axis of {list(shape)} comes twice in {list(named)}")
    return found


def is_empty(axes: object) -> bool:
    """Return True for a tuple or a list without axes."""
    return isinstance(axes, tuple | list) and not axes


def reduced(what: str, shape: Shape, axes: int | Shape | None) -> Shape:
    """Return the axes over which a function reduces, as ``axes_of`` does; () means all, too, as in PyTorch."""
    return axes_of(what, shape, None if is_empty(axes) else axes)


def sizes_at_least_0(sizes: Iterable[object]) -> Shape:
    """Return the sizes of a new tensor as Python's integers.
    Raises WrongKind for a size that is no integer, ShapeError if one is negative."""
    shape = whole(sizes)
    if min(shape, default=0) < 0:
        raise ShapeError(f"a tensor cannot have the sizes {list(shape)}")
    return shape


def tensor_for(what: str, value: object) -> Tensor:
    """Return a tensor. Raises WrongKind, naming the function ``what``, for all else."""
    if not isinstance(value, Tensor):
        raise WrongKind(f"{what}: a {type(value).__name__} is not a tensor; minidl.tensor(x) converts it")
    return value


def as_dtype(dtype: object) -> DType | None:
    """Return a dtype, for which a Python type may stand; None for None. Raises WrongKind for all else."""
    found = TYPES.get(dtype) if isinstance(dtype, type) else dtype
    if dtype is not None and not isinstance(found, DType):
        raise WrongKind(f"a dtype is one of minidl's, such as minidl.float32, or float, int or bool, not {dtype!r}")
    return found  # type: ignore[return-value]  # None or a DType


def numbers(x: Meta) -> Meta:
    """Return x. Raises ShapeError for booleans, which have no arithmetic."""
    if x.dtype is boolean:
        raise ShapeError(f"{x}: booleans have no arithmetic; x.to(dtype) converts them to 0 and 1")
    return x


def number_for(what: str, x: Meta, value: float) -> float:
    """Return a number as a float, after a check that the dtype of x can represent it.
    Raises ShapeError if x has integers and the number is a fraction or exceeds their dtype."""
    plain_number(what, value)
    if not x.dtype.floating and (not math.isfinite(value) or value != int(value) or abs(value) > EXACT
                                 or abs(value) >= _beyond(x.dtype)):
        raise ShapeError(f"{what}: {x} with {value} is not {x.dtype.name}: upload it with a floating dtype")
    return float(value)


def must_hold(what: str, dtype: DType, value: float) -> None:
    """Raise WrongKind, naming the function ``what``, for what is no number, and UserError for a number beyond the range
    of an integer dtype; its kernel would fail. Fractions are cut."""
    plain_number(what, value)
    least = 0 if dtype is uint8 else -_beyond(dtype)
    if not dtype.floating and dtype is not boolean and not least <= value < _beyond(dtype):  # NaN, too
        raise UserError(f"a value of {value} does not fit {dtype.name}")


def plain_number(what: str, value: object) -> float:
    """Return a number as a float. Raises WrongKind, naming the function ``what``, for all else, also tensors."""
    if isinstance(value, Tensor):
        raise WrongKind(f"{what} takes a number, not a tensor, whose gradient would be lost; x.item() gives a number")
    if not isinstance(value, int | float):
        if not hasattr(value, "dtype"):
            raise WrongKind(f"{what} takes a number, not a {type(value).__name__}")
        if shape := getattr(value, "shape", ()):
            raise WrongKind(f"{what} takes a number, not an array of shape {list(shape)}; minidl.tensor(x) "
                            "makes a tensor of it")
    return float(value)  # type: ignore[arg-type]


def _beyond(dtype: DType) -> int:
    """Return the smallest positive integer that is out of range of an integer dtype."""
    return 2 if dtype is boolean else 1 << (8 * dtype.itemsize - (dtype is not uint8))


def reciprocal(value: float) -> float:
    """Return 1 / value; for 0 infinity with the sign of the 0, as devices compute it."""
    return 1.0 / value if value else math.copysign(math.inf, value)


def loses_gradient(x: Tensor) -> bool:
    """Return True if x requires a gradient but gradients are disabled, so that a function must not return x itself."""
    return x.requires_grad and not current().grad_enabled
