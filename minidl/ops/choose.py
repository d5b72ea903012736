"""Comparisons, which give booleans; selection by a boolean mask; and conversions between dtypes.

Comparisons and conversions to or from integers have no gradient."""

from collections.abc import Sequence

import numpy as np

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError, UserError
from minidl.meta import Cost, DType, Meta, Shape, boolean, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import number_for
from minidl.ops.elementwise import FIRST, broadcast, expand, same_dtype, sum_to
from minidl.ops.shape import CAST
from minidl.parts.slice_rules import along, elementwise
from minidl.tensor import Gradients, Needs, Tensor

RELATIONS = ("==", "!=", "<", "<=", ">", ">=")


def _compare_infer(a: Meta, b: Meta, *, relation: str) -> Meta:
    return meta(same_dtype(a, b).shape, boolean)


def _compare_number_infer(x: Meta, *, relation: str, value: float) -> Meta:
    return meta(x.shape, boolean)


def _check_mask(what: str, mask: Meta) -> None:
    if mask.dtype is not boolean:
        raise ShapeError(f"{what} needs a boolean mask, not {mask}; x > 0 or x.bool() gives one")


def _where_infer(mask: Meta, a: Meta, b: Meta) -> Meta:
    _check_mask("where", mask)
    both = same_dtype(a, b)
    return meta(broadcast(both.shape, mask.shape), both.dtype)


def _fill_infer(x: Meta, mask: Meta, *, value: float, inverted: bool) -> Meta:
    _check_mask("masked_fill", mask)
    if broadcast(x.shape, mask.shape) != x.shape:
        raise ShapeError(f"masked_fill: a mask {list(mask.shape)} does not broadcast to {list(x.shape)}")
    return meta(x.shape, x.dtype)


def _where_vjp(needs: Needs, dy: Tensor, mask: Tensor, *, a_shape: Shape, b_shape: Shape) -> Gradients:
    da = sum_to(_filled(dy, mask, 0.0, inverted=True), a_shape) if needs[1] else None
    db = sum_to(_filled(dy, mask, 0.0, inverted=False), b_shape) if needs[2] else None
    return None, da, db


def _convert_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(0.0, float(inputs[0].nbytes + outputs[0].nbytes), "copy")


COMPARE = Op("compare", _compare_infer, exact=True, slices=elementwise())
COMPARE_NUMBER = Op("compare_number", _compare_number_infer, exact=True, volatile=("value",), slices=elementwise())
MASKED_FILL = Op("masked_fill", _fill_infer, donates=FIRST, exact=True, integers=("mask",), volatile=("value",),
                 slices=elementwise(), vjp=lambda needs, dy, mask, *, inverted:
                 (_filled(donate(dy), mask, 0.0, inverted=inverted), None))
WHERE = Op("where", _where_infer, vjp=_where_vjp, donates=((0, 1), (0, 2)), exact=True, integers=("mask",),
           slices=elementwise())
CONVERT = Op("convert", lambda x, *, dtype: meta(x.shape, dtype), _convert_cost, exact=True, slices=along(0))


def _filled(x: Tensor, mask: Tensor, value: float, *, inverted: bool) -> Tensor:
    return apply(MASKED_FILL, x, mask, value=value, inverted=inverted)


def compare(a: Tensor, b: Tensor | float, relation: str) -> Tensor:
    """Return booleans ``a relation b``, element by element, with broadcasting; ``relation`` is one of RELATIONS.
    Raises ShapeError for two different dtypes, or a number that a's dtype cannot represent."""
    assert relation in RELATIONS, relation
    if isinstance(b, Tensor):
        return apply(COMPARE, a, b, relation=relation)
    if not isinstance(b, int | float | np.number | np.bool_):
        raise UserError(f"{relation}: a {type(b).__name__} is not a tensor; runtime.tensor(x) converts it")
    return apply(COMPARE_NUMBER, a, relation=relation, value=number_for(relation, a.meta, b))


def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """Return ``value`` where the mask is true, input elsewhere. The mask broadcasts with input.
    value: a number, or a tensor without dimensions, to which gradients flow. Raises ShapeError on a misfit."""
    if isinstance(value, Tensor):
        if value.shape:
            raise ShapeError(f"masked_fill takes a number or a tensor without dimensions, not {list(value.shape)}")
        return apply(WHERE, mask, convert(value, input.dtype), input)
    wide = expand(input, broadcast(input.shape, mask.shape))
    return _filled(wide, mask, number_for("masked_fill", input.meta, value), inverted=False)


def where(mask: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
    """Return a where the mask is true, b elsewhere, with broadcasting; a or b may be a number.
    Raises ShapeError for two numbers, a mask that is not boolean, or a misfit of shapes or dtypes."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return apply(WHERE, mask, a, b)
    if isinstance(a, Tensor):
        wide = expand(a, broadcast(a.shape, mask.shape))
        return _filled(wide, mask, number_for("where", a.meta, float(b)), inverted=True)
    if isinstance(b, Tensor):
        return masked_fill(b, mask, a)
    raise ShapeError(f"where needs a tensor beside its mask, not {a} and {b}; full(shape, {a}) makes one")


def convert(x: Tensor, dtype: DType) -> Tensor:
    """Return x in a dtype; x itself if it has that dtype already.
    Conversions between floats round and have a gradient; floats become integers by truncation; booleans are x != 0."""
    if x.dtype is dtype:
        return x
    if x.dtype.floating and dtype.floating:
        return apply(CAST, x, dtype=dtype)
    return compare(x, 0, "!=") if dtype is boolean else apply(CONVERT, x, dtype=dtype)


def logical_not(input: Tensor) -> Tensor:
    """Return booleans that are True where input is zero."""
    return compare(input, 0, "==")


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """Return booleans that are True where both a and b, boolean tensors, are."""
    return where(a, b, 0)


def logical_or(a: Tensor, b: Tensor) -> Tensor:
    """Return booleans that are True where a or b, boolean tensors, is."""
    return where(a, 1, b)


setattr(Tensor, "masked_fill", masked_fill)  # noqa: B010 - attached, as in every module here
