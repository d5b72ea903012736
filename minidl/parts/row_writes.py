"""Operations in place that treat each row separately: what their attributes are on a range of rows."""

from collections.abc import Callable
from typing import Any

from minidl.op import Attrs

# (attributes, first row of the range, row after its last, elements of a row) -> the attributes that the call on these
# rows has in place of the given ones.
Attributes = Callable[[Attrs, int, int, int], dict[str, Any]]


def _as_it_is(attrs: Attrs, first: int, stop: int, width: int) -> dict[str, Any]:
    return {}


def _random(attrs: Attrs, first: int, stop: int, width: int) -> dict[str, Any]:
    """Return ``start``, the number of the range's first element, if not 0: so rows draw as in the whole tensor."""
    start = attrs.get("start", 0) + first * width
    return {"start": start} if start else {}


def _data(attrs: Attrs, first: int, stop: int, width: int) -> dict[str, Any]:
    return {} if attrs["data"] is None else {"data": attrs["data"][first:stop]}


WRITES: dict[str, Attributes] = {"add_": _as_it_is, "copy_": _as_it_is, "fill_": _as_it_is, "normal_": _random,
                                 "uniform_": _random, "upload_": _data}
