"""The largest or smallest elements of rows and their indices: one operation for max, min, argmax and topk.

Rows are along the last dimension; another dimension is moved there as a view. For the gradient only the indices are
kept, not the rows. NaN ranks before all numbers; of equal elements the first ranks first.
"""

from collections.abc import Sequence
from math import prod

from minidl.dispatch import apply, apply_all, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Shape, int64, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import axes_of, reduced
from minidl.ops.embedding import GATHER_ROWS_GRAD, gather_rows
from minidl.ops.functions import of_numbers_too, over_last
from minidl.ops.library import maximum, minimum
from minidl.ops.shape import between, detach, flatten, permute, reshape
from minidl.parts.slice_rules import along
from minidl.surface import Ranked
from minidl.tensor import Gradients, Needs, Tensor


def _infer(x: Meta, *, k: int, largest: bool) -> tuple[Meta, Meta]:
    if not x.shape or not 1 <= k <= x.shape[-1]:
        raise ShapeError(f"topk: rows of {list(x.shape)} do not have {k} elements")
    shape = (*x.shape[:-1], k)
    return meta(shape, x.dtype), meta(shape, int64)


def _cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(float(inputs[0].size), float(sum(m.nbytes for m in (*inputs, *outputs))), "reduce")


def _vjp(needs: Needs, dy: Tensor, dindex: Tensor | None, index: Tensor, *, x_shape: Shape, k: int) -> Gradients:
    rows, width = prod(x_shape[:-1]), x_shape[-1]
    index = reshape(index, (rows, k))
    dx = apply(GATHER_ROWS_GRAD, reshape(donate(dy), (rows * k, 1)), index, x_shape=(rows, width, 1))
    return (reshape(dx, x_shape),)


TOPK = Op("topk", _infer, _cost, outputs=("y", "index"), vjp=_vjp, exact=True, slices=along(0, dims=2))


@of_numbers_too
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    """Return the k largest (or smallest) elements along one dimension and their indices, always sorted, best first.
    Raises ShapeError for a dimension out of range, and unless 1 <= k <= the dimension's size."""
    moved, back = over_last(input, dim, "topk")
    values, index = apply_all(TOPK, moved, k=k, largest=largest)
    return Ranked(permute(values, back), permute(index, back)) if back else Ranked(values, index)


@of_numbers_too
def _extreme(x: Tensor, dim: int, keepdim: bool, largest: bool) -> Ranked:
    found = topk(x, 1, dim, largest)
    if keepdim:
        return found
    axis = axes_of("max", x.shape, dim)[0]
    shape = x.shape[:axis] + x.shape[axis + 1:]
    return Ranked(reshape(found.values, shape), reshape(found.indices, shape))


def _either(x: Tensor, other: int | Tensor | None, keepdim: bool, largest: bool) -> Tensor | Ranked:
    if other is None:
        return amax(x) if largest else amin(x)
    if isinstance(other, Tensor):
        return maximum(x, other) if largest else minimum(x, other)
    return _extreme(x, other, keepdim, largest)


def max(input: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | Ranked:  # noqa: A001
    """Return the largest element; with ``dim``, the largest ones along it and their indices.
    With a tensor in place of ``dim``, return ``maximum(input, dim)``."""
    return _either(input, dim, keepdim, True)


def min(input: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | Ranked:  # noqa: A001
    """Return the smallest element; with ``dim``, the smallest ones along it and their indices.
    With a tensor in place of ``dim``, return ``minimum(input, dim)``."""
    return _either(input, dim, keepdim, False)


def _extreme_over(x: Tensor, dim: int | Shape | None, keepdim: bool, largest: bool) -> Tensor:
    """Return the largest (or smallest) element over several dimensions, which are moved to the end and merged."""
    axes = reduced("amax", x.shape, dim)
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    flat = reshape(permute(x, kept + axes), (*[x.shape[i] for i in kept], prod(x.shape[i] for i in axes)))
    y = apply_all(TOPK, flat, k=1, largest=largest)[0]
    return reshape(y, tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdim or i not in axes))


def amax(input: Tensor, dim: int | Shape | None = None, keepdim: bool = False) -> Tensor:
    """Return the largest element over ``dim``, by default over all dimensions.
    The first of equal ones gets the gradient. Raises ShapeError for a dimension that is repeated or out of range."""
    return _extreme_over(input, dim, keepdim, True)


def amin(input: Tensor, dim: int | Shape | None = None, keepdim: bool = False) -> Tensor:
    """Return the smallest element over ``dim``, by default over all dimensions. Raises ShapeError for a bad ``dim``."""
    return _extreme_over(input, dim, keepdim, False)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index, int64, of the largest element along ``dim``: of equal elements the first; NaN is largest.
    dim None: return a scalar, the index in the flattened tensor, whatever ``keepdim`` is. keepdim: ``dim`` stays, with
    size 1. Raises ShapeError for a dimension that is empty or out of range."""
    return _extreme(detach(input), dim, keepdim, True).indices if dim is not None else _first(input, True)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the smallest element along ``dim``: of equal elements the first, and NaN before all numbers.
    Arguments and errors are those of ``argmax``."""
    return _extreme(detach(input), dim, keepdim, False).indices if dim is not None else _first(input, False)


def _first(x: Tensor, largest: bool) -> Tensor:
    return _extreme(flatten(detach(x), 0), 0, False, largest).indices


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the elements of input whose indices along ``dim`` are in ``index``; the result has index's shape.
    Raises ShapeError for an ``index`` larger than input in other dimensions; UserError for a number out of range
    (on a GPU the element is NaN, or 0)."""
    if not input.shape:
        return reshape(gather(reshape(input, (1,)), dim, reshape(index, (-1,))), index.shape)
    axis = axes_of("gather", input.shape, dim)[0]
    for i, size in enumerate(index.shape):
        if input.ndim == index.ndim and i != axis and size < input.shape[i]:
            input = between(input, i, 0, size)
    moved, back = over_last(input, dim, "gather")
    at, _ = over_last(index, dim, "gather")
    if moved.shape[:-1] != at.shape[:-1]:
        raise ShapeError(f"gather along {dim}: {list(index.shape)} does not fit {list(input.shape)}")
    rows, width, count = prod(moved.shape[:-1]), moved.shape[-1], at.shape[-1]
    y = reshape(gather_rows(reshape(moved, (rows, width, 1)), reshape(at, (rows, count))), at.shape)
    return permute(y, back) if back else y


for _name, _function in {"topk": topk, "max": max, "min": min, "amax": amax, "amin": amin, "argmax": argmax,
                         "argmin": argmin, "gather": gather}.items():
    setattr(Tensor, _name, _function)
