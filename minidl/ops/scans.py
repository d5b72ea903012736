"""PyTorch's cumulative sums and products, reductions, sorting and scatter functions, composed of other operations."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.errors import ShapeError, UserError
from minidl.meta import DType, Shape, boolean, int64
from minidl.ops.arguments import axis_of, is_empty, reduced
from minidl.ops.arithmetic import add, compare, mul
from minidl.ops.choose import convert, logical_and, logical_not, masked_fill
from minidl.ops.elementwise import neg, shift
from minidl.ops.elementwise import sum as sum_
from minidl.ops.embedding import add_rows
from minidl.ops.functions import in_dtype, of_numbers_too, over_last
from minidl.ops.library import exp, log
from minidl.ops.parts import squeeze
from minidl.ops.ranking import amax, topk
from minidl.ops.rearranging import at, flip
from minidl.ops.shape import concat, detach, permute, reshape
from minidl.ops.update import full
from minidl.surface import Ranked
from minidl.tensor import Tensor

Axes = int | Shape | None


# Sums and products along a dimension --------------------------------------------------------------------------------
def _scanned(x: Tensor, dim: int, what: str, start: float,
             combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return y[i] = combine(...(x[0], x[1])..., x[i]) along a dimension, in log2(n) calls. start: neutral element."""
    axis = axis_of(what, x.shape or (1,), dim)
    if not x.shape:
        return x.clone()
    n, step, y = x.shape[axis], 1, x
    while step < n:
        shape = (*x.shape[:axis], step, *x.shape[axis + 1:])
        before = concat([full(shape, start, x.dtype), at(y, axis, slice(0, n - step))], axis)
        y, step = combine(y, before), 2 * step
    return y if y is not x else x.clone()


def _summed_up(x: Tensor, dtype: DType | None) -> Tensor:
    return in_dtype(x, dtype) if dtype is not None or x.dtype.floating else convert(x, int64)


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return cumulative sums along a dimension; integers and booleans give int64, or ``dtype``.
    Raises ShapeError for a dimension out of range."""
    return _scanned(_summed_up(input, dtype), dim, "cumsum", 0, add)


def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return cumulative products along a dimension; integers give int64, or ``dtype``.
    Raises ShapeError for a dimension out of range."""
    return _scanned(_summed_up(input, dtype), dim, "cumprod", 1, mul)


@of_numbers_too
def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Return the product along a dimension, or of all elements; integers give int64, or ``dtype``.
    Raises ShapeError for a dimension out of range."""
    input = _summed_up(input, dtype)
    if dim is None:
        return prod(reshape(input, (-1,)), 0)
    axis = axis_of("prod", input.shape, dim)
    while (n := input.shape[axis]) > 1:
        half = n // 2
        both = mul(at(input, axis, slice(0, half)), at(input, axis, slice(half, 2 * half)))
        input = concat([both, at(input, axis, slice(2 * half, n))], axis) if n % 2 else both
    if not input.shape[axis]:
        input = full((*input.shape[:axis], 1, *input.shape[axis + 1:]), 1, input.dtype)
    return input if keepdim else squeeze(input, axis)


def _as_booleans(x: Tensor) -> Tensor:
    return x if x.dtype is boolean else compare(x, 0, "!=")


def any_of(input: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return booleans that are True if any element along ``dim`` is nonzero, by default any of all.
    As in PyTorch, () reduces nothing here. Raises ShapeError for a dimension out of range."""
    some = _as_booleans(input)
    return some.clone() if is_empty(dim) else compare(sum_(some, dim, keepdim), 0, ">")


def all_of(input: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return booleans that are True if all elements along ``dim`` are nonzero, by default all.
    As in PyTorch, () reduces nothing here. Raises ShapeError for a dimension out of range."""
    if is_empty(dim):
        return any_of(input, dim)
    return compare(sum_(logical_not(_as_booleans(input)), dim, keepdim), 0, "==")


def count_nonzero(input: Tensor, dim: Axes = None) -> Tensor:
    """Return the number of nonzero elements along ``dim``, by default of all. ShapeError for a ``dim`` out of range."""
    return sum_(_as_booleans(input), dim)


def logsumexp(input: Tensor, dim: int | Shape, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(input))) along ``dim``, without overflow. Raises ShapeError for a ``dim`` out of range."""
    top = amax(detach(input), dim, keepdim=True)
    top = masked_fill(top, logical_not(logical_and(compare(top, float("-inf"), ">"), compare(top, float("inf"), "<"))),
                      0.0)
    y = add(log(sum_(exp(add(input, neg(top))), dim, keepdim=True)), top)
    return y if keepdim else squeeze(y, reduced("logsumexp", input.shape, dim))


# Order --------------------------------------------------------------------------------------------------------------
@of_numbers_too
def sort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Ranked:
    """Return the elements along a dimension, sorted, and their indices; the sort is stable and NaN is largest.
    Raises ShapeError for a dimension out of range."""
    axis = axis_of("sort", input.shape, dim)
    n = input.shape[axis]
    if descending or n < 2:
        return topk(input, n, axis, largest=True) if n else Ranked(input.clone(), convert(input, int64))
    # Reverse, sort with the largest first, and reverse again, so that equal elements keep their order.
    values, places = topk(flip(input, axis), n, axis, largest=True)
    return Ranked(flip(values, axis), shift(neg(flip(places, axis)), n - 1))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    """Return the indices that sort input along ``dim``, ascending unless ``descending``; the sort is always stable.
    Raises ShapeError for a dimension out of range."""
    return sort(detach(input), dim, descending, stable=stable).indices


# Into other places --------------------------------------------------------------------------------------------------
@of_numbers_too
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return input with the elements of ``src`` added at the indices ``index`` along ``dim``.
    index and src have one shape; in the other dimensions index has input's size. Raises ShapeError for other
    shapes; UserError for an index out of range, which a GPU leaves out instead."""
    axis = axis_of("scatter_add", input.shape, dim)
    sizes = enumerate(zip(index.shape, input.shape, strict=False))
    if index.shape != src.shape or index.ndim != input.ndim or any(i != axis and n != m for i, (n, m) in sizes):
        raise ShapeError(f"scatter_add along {dim}: index {list(index.shape)} and src {list(src.shape)} do not fit "
                         f"{list(input.shape)}")
    return add(input, _scattered(input, dim, index, src))


def _scattered(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return zeros of x's shape with ``src`` added at the indices ``index`` along ``dim``."""
    moved, back = over_last(x, dim, "scatter_add")
    places, _ = over_last(index, dim, "scatter_add")
    given, _ = over_last(src, dim, "scatter_add")
    if moved.shape[:-1] != places.shape[:-1] or places.shape != given.shape:
        raise ShapeError(f"scatter_add along {dim}: {list(index.shape)} and {list(src.shape)} do not fit "
                         f"{list(x.shape)}")
    rows, width, count = int(np.prod(moved.shape[:-1])), moved.shape[-1], places.shape[-1]
    y = add_rows(reshape(given, (rows * count, 1)), reshape(convert(places, int64), (rows, count)), (rows, width, 1))
    y = reshape(y, moved.shape)
    return permute(y, back) if back else y


@of_numbers_too
def scatter(input: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    """Return input with a number written at the indices ``index`` along ``dim``.
    In the other dimensions index has input's size, else ShapeError. Raises UserError for a tensor ``value`` and an
    index out of range, which a GPU leaves out instead."""
    if isinstance(value, Tensor):
        raise UserError("scatter takes a number; scatter_add takes a tensor, and adds elements with equal positions")
    with_hits = _scattered(full(input.shape, 0.0), dim, index, full(index.shape, 1.0))
    return masked_fill(input, compare(with_hits, 0, "!="), value)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Return input with ``alpha`` * ``source`` added at the indices ``index`` along ``dim``.
    Raises ShapeError if ``source`` does not have input's shape with len(index) along ``dim``; UserError for an index
    out of range, which a GPU leaves out instead."""
    axis = axis_of("index_add", input.shape, dim)
    if index.ndim != 1 or source.shape != (*input.shape[:axis], index.shape[0], *input.shape[axis + 1:]):
        raise ShapeError(f"index_add along {dim}: index {list(index.shape)} and source {list(source.shape)} do not fit "
                         f"{list(input.shape)}")
    order = (axis, *(i for i in range(input.ndim) if i != axis))
    rows = reshape(permute(source, order), (index.shape[0], -1))
    places = reshape(convert(index, int64), (1, -1))
    sums = reshape(add_rows(rows, places, (1, input.shape[axis], rows.shape[1])), tuple(input.shape[i] for i in order))
    return add(input, permute(sums, tuple(sorted(range(input.ndim), key=order.__getitem__))), alpha=alpha)


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return True if |input - other| <= atol + rtol * |other| everywhere, with ``equal_nan`` also where both are NaN.
    The values are copied to the host."""
    return bool(np.allclose(input.numpy(), other.numpy(), rtol, atol, equal_nan))


def equal(input: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape and values. The values are copied to the host."""
    return input.shape == other.shape and bool(np.array_equal(input.numpy(), other.numpy()))


FUNCTIONS: dict[str, Any] = {
    "cumsum": cumsum, "cumprod": cumprod, "prod": prod, "any": any_of, "all": all_of, "count_nonzero": count_nonzero,
    "logsumexp": logsumexp, "sort": sort, "argsort": argsort, "scatter_add": scatter_add, "scatter": scatter,
    "index_add": index_add, "allclose": allclose, "equal": equal,
}
"""PyTorch's name -> function; each is also a method of tensors."""
