"""PyTorch's functions that reorder, repeat or select elements, composed of views, joins and row look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidl.context import current
from minidl.dispatch import apply
from minidl.errors import ShapeError, UserError
from minidl.meta import DType, Shape, float64, int64
from minidl.ops.arguments import axes_of, axis_of
from minidl.ops.arithmetic import compare
from minidl.ops.choose import convert
from minidl.ops.elementwise import broadcast, expand
from minidl.ops.embedding import embedding
from minidl.ops.functions import of_numbers_too
from minidl.ops.indexing import index
from minidl.ops.parts import unsqueeze
from minidl.ops.ranking import gather
from minidl.ops.shape import concat, permute, reshape, sizes_of
from minidl.ops.update import UPLOAD
from minidl.tensor import Tensor


def uploaded(values: Any, dtype: DType = int64) -> Tensor:
    """Return a new tensor with values that were computed on the host, in ``dtype``."""
    array = np.ascontiguousarray(values, dtype.name)
    return apply(UPLOAD, shape=array.shape, dtype=dtype, data=array)


def at(x: Tensor, axis: int, key: Any) -> Tensor:
    """Return x indexed by ``key`` along dimension ``axis``, and whole along all others."""
    return index(x, (*(slice(None),) * axis, key))


def values_of(what: str, x: Tensor) -> np.ndarray:
    """Return x's values, on which a result's shape depends. Waits for the device.
    Raises UserError, naming the function ``what``, if the device has no values."""
    if not current().device.has_values:
        raise UserError(f"{what}: the result's shape depends on values, and {current().device.name} has none")
    return x.numpy()


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of input's parts along one dimension, which is removed. Raises ShapeError if it is out of range."""
    axis = axis_of("unbind", input.shape, dim)
    return tuple(at(input, axis, i) for i in range(input.shape[axis]))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Return a view of part ``index`` along one dimension, which is removed. Raises ShapeError if out of range."""
    return at(input, axis_of("select", input.shape, dim), index)


@of_numbers_too
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return a copy of the parts number ``index`` of input along ``dim``.
    Raises ShapeError for a bad ``dim``, UserError for a number out of range."""
    return at(input, axis_of("index_select", input.shape, dim), reshape(index, (-1,)))


def flip(input: Tensor, *axes: int | Shape, dims: Shape | None = None) -> Tensor:
    """Return a copy of input, reversed along some dimensions, which may be given as ``dims``.
    Raises ShapeError for a dimension that is repeated or out of range."""
    named = dims if dims is not None else axes[0] if len(axes) == 1 and hasattr(axes[0], "__iter__") else axes
    y = input
    for axis in axes_of("flip", input.shape, tuple(named)):  # type: ignore[arg-type]
        y = at(y, axis, np.arange(input.shape[axis])[::-1]) if input.shape[axis] > 1 else y
    return y if y is not input else input.clone()


def roll(input: Tensor, shifts: int | Shape, dims: int | Shape | None = None) -> Tensor:
    """Return input rotated along some dimensions; elements shifted past the end reappear at the start.
    Without dimensions, input is rotated in C order. Raises ShapeError for a dimension out of range."""
    if dims is None:
        if hasattr(shifts, "__iter__"):
            raise ShapeError("roll: several distances need several dimensions")
        return reshape(roll(reshape(input, (-1,)), shifts, 0), input.shape)
    distances = sizes_of((shifts,))
    axes = axes_of("roll", input.shape, dims)
    if len(axes) != len(distances):
        raise ShapeError(f"roll: {len(distances)} distances along {len(axes)} dimensions")
    for axis, distance in zip(axes, distances, strict=True):
        size = input.shape[axis]
        cut = size - distance % size if size else 0
        input = (concat([at(input, axis, slice(cut, None)), at(input, axis, slice(0, cut))], axis) if cut != size
                 else input.clone())
    return input


def movedim(input: Tensor, source: int | Shape, destination: int | Shape) -> Tensor:
    """Return a view of input with dimensions moved to other positions; the others keep their order.
    Raises ShapeError for a dimension that is repeated or out of range."""
    origins, targets = axes_of("movedim", input.shape, source), axes_of("movedim", input.shape, destination)
    rest = iter([i for i in range(input.ndim) if i not in origins])
    places = dict(zip(targets, origins, strict=True))
    return permute(input, tuple(places[i] if i in places else next(rest) for i in range(input.ndim)))


def broadcast_to(input: Tensor, size: Shape) -> Tensor:
    """Return a view of input broadcast to the shape ``size``. Raises ShapeError if input does not broadcast to it."""
    return expand(input, tuple(size))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views of the tensors, broadcast to their common shape. Raises ShapeError without one."""
    shape: Shape = ()
    for x in tensors:
        shape = broadcast(shape, x.shape)
    return tuple(expand(x, shape) for x in tensors)


def tile(input: Tensor, *dims: int | Shape) -> Tensor:
    """Return a copy of input repeated ``dims`` times along its last dimensions.
    Raises ShapeError for negative counts."""
    counts = sizes_of(dims)
    return input.repeat(*(1,) * (input.ndim - len(counts)), *counts)


def unflatten(input: Tensor, dim: int, sizes: Shape) -> Tensor:
    """Return input with dimension ``dim`` split into ``sizes``, of which one may be -1. Misfits raise ShapeError."""
    axis = axis_of("unflatten", input.shape, dim)
    rest = input.shape[axis]
    known = int(np.prod([n for n in sizes if n != -1]))
    full_sizes = tuple(rest // max(1, known) if n == -1 else n for n in sizes)
    return reshape(input, (*input.shape[:axis], *full_sizes, *input.shape[axis + 1:]))


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along the second dimension, vectors along the first. Raises ShapeError if other sizes differ."""
    return concat(list(tensors), 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors along the first dimension; vectors become rows. Raises ShapeError if other sizes differ."""
    return concat([unsqueeze(x, 0) if x.ndim == 1 else x for x in tensors], 0)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Return vectors as views of one grid: vector i varies along dimension i ("ij"); "xy" swaps the first two.

    Raises ShapeError for another ``indexing``.
    """
    given: Sequence[Tensor] = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    if indexing not in ("ij", "xy"):
        raise ShapeError(f"meshgrid: indexing must be ij or xy, not {indexing!r}")
    order = [1, 0, *range(2, len(given))] if indexing == "xy" and len(given) > 1 else list(range(len(given)))
    shape = tuple(given[i].numel() for i in order)
    return tuple(expand(reshape(x, tuple(-1 if j == i else 1 for j in order)), shape)
                 for i, x in enumerate(given))


def repeat_interleave(x: Tensor, repeats: int | Tensor, dim: int | None = None, *,
                      output_size: int | None = None) -> Tensor:
    """Return x with each element along a dimension repeated ``repeats`` times in a row; without ``dim``, x is flat.
    Counts in a tensor are copied to the host; ``output_size`` has no effect. Raises ShapeError for a bad ``dim``
    or bad counts, UserError for counts in a tensor on a device without values."""
    if dim is None:
        x, dim = reshape(x, (-1,)), 0
    axis = axis_of("repeat_interleave", x.shape, dim)
    if isinstance(repeats, Tensor):
        counts = values_of("repeat_interleave", repeats)
        if counts.shape not in ((), (1,), (x.shape[axis],)) or (counts < 0).any():
            raise ShapeError(f"repeat_interleave takes {x.shape[axis]} counts of 0 or more, or one, not {counts}")
        return at(x, axis, uploaded(np.repeat(np.arange(x.shape[axis]), counts)))
    wide = expand(unsqueeze(x, axis + 1), (*x.shape[:axis + 1], repeats, *x.shape[axis + 1:]))
    return reshape(wide, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1:]))


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return a one-hot encoding of integers, int64 [*tensor.shape, num_classes].
    The default number of classes is 1 + the largest value, which is copied to the host.
    Raises UserError if it is needed on a device without values, and for an integer that is no class, whose row on a
    GPU is zeros instead."""
    if num_classes < 0:
        num_classes = int(values_of("one_hot", tensor).max(initial=-1)) + 1
    places = uploaded(np.arange(num_classes), float64)
    known = embedding(reshape(places, (-1, 1)), convert(tensor, int64))  # which refuses other numbers, or gives NaN
    return convert(compare(known, places, "=="), int64)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Return ``gather(input, dim, indices)``, with both broadcast in the other dimensions.
    Without ``dim``, both are flat. Raises ShapeError for a misfit of shapes, UserError for an index out of range."""
    if dim is None:
        return gather(reshape(input, (-1,)), 0, reshape(indices, (-1,)))
    axis = axis_of("take_along_dim", input.shape, dim)
    if input.ndim != indices.ndim:
        raise ShapeError(f"take_along_dim: {list(indices.shape)} and {list(input.shape)} differ in their dimensions")

    def wide(y: Tensor, other: Tensor) -> Tensor:
        return expand(y, tuple(m if n == 1 and i != axis else n
                               for i, (n, m) in enumerate(zip(y.shape, other.shape, strict=True))))
    return gather(wide(input, indices), axis, wide(indices, input))


# Places that values decide ------------------------------------------------------------------------------------------
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Return the indices of nonzero elements: int64 [count, dimensions], or with ``as_tuple`` a vector per dimension.
    The values are copied to the host. Raises UserError on a device without values."""
    values = values_of("nonzero", input)
    return tuple(map(uploaded, np.nonzero(np.atleast_1d(values)))) if as_tuple else uploaded(np.argwhere(values))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Return the elements where a mask is true, in C order. The mask is read on the host; without values UserError."""
    shape = broadcast(input.shape, mask.shape)
    return index(reshape(expand(input, shape), (-1,)), reshape(expand(mask, shape), (-1,)))


FUNCTIONS: dict[str, Any] = {
    "unbind": unbind, "select": select, "index_select": index_select, "flip": flip, "roll": roll, "movedim": movedim,
    "moveaxis": movedim, "broadcast_to": broadcast_to, "tile": tile, "unflatten": unflatten,
    "repeat_interleave": repeat_interleave, "nonzero": nonzero, "masked_select": masked_select,
    "take_along_dim": take_along_dim,
}
"""PyTorch's name -> function; each is also a method of tensors."""
