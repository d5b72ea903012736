"""Indexing x[...] as in NumPy: integers, slices, None and ... give a view; lists and tensors of integers look rows up.

The size of x[mask] depends on the mask's values: the mask is copied to the host, where its true elements are found.
Assignment to x[...] writes in place.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from minidl.context import current
from minidl.dispatch import apply
from minidl.errors import NoSuchIndex, ShapeError, UserError
from minidl.meta import Part, Parts, boolean, int64, uint8
from minidl.ops.choose import compare, convert, where
from minidl.ops.elementwise import add, expand, scale, shift
from minidl.ops.embedding import embedding
from minidl.ops.parts import unsqueeze, view_of
from minidl.ops.shape import CONTIGUOUS, permute, reshape
from minidl.ops.update import UPLOAD, copy_, fill_
from minidl.tensor import Tensor

Array = np.ndarray[Any, Any]
Chosen = dict[int, Array | Tensor]  # integers by the dimension of x that they choose from


def _integer(value: int, size: int, dim: int) -> int:
    if not -size <= value < size:
        raise NoSuchIndex(f"index {value} is out of range for dimension {dim} of {size} elements")
    return value % size


def _slice(value: slice, size: int) -> tuple[int, ...]:
    if value.step is not None and value.step < 1:
        raise ShapeError(f"a slice takes steps of 1 or more, not {value.step}; flip the array before you upload it")
    start, stop, step = value.indices(size)
    return () if (start, stop, step) == (0, size, 1) else (start, max(start, stop), step)


def _positions(mask: Tensor | Array) -> tuple[Array, ...]:
    """Return the indices at which a mask is true, one array per dimension."""
    return np.nonzero(_read(mask))


def _read(mask: Any) -> Any:
    """Return a mask's values. For a mask on the device, waits for the device."""
    if isinstance(mask, Tensor):
        if not current().device.has_values:
            raise UserError(f"the size of x[mask] depends on the mask's values, and {current().device.name} has no "
                            "values; use where(mask, x, 0), masked_fill or a sum over mask * x")
        return mask.numpy()
    return mask


def _expanded(x: Tensor, key: Any) -> list[Any]:
    """Return the items of the key of x[key], with ... replaced by slices, masks by indices, and lists by arrays."""
    items: list[Any] = []
    masks: list[tuple[int, tuple[int, ...]]] = []  # the number of the first item of each, and its shape
    for item in key if isinstance(key, tuple) else (key,):
        if isinstance(item, list | range):
            item = np.asarray(item)
            item = item.astype(np.int64) if not item.size else item
        if isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype.kind in "iub":
            item = item.item()
        if isinstance(item, bool | np.bool_) or isinstance(item, Tensor) and item.dtype is boolean and not item.shape:
            items.append(bool(_read(item)))  # a mask without dimensions, which ``_parsed`` looks up in a new one
            continue
        if isinstance(item, np.ndarray | Tensor) and item.dtype in (boolean, np.bool_):
            masks.append((len(items), tuple(item.shape)))
            items += _positions(item)
        elif isinstance(item, np.ndarray) and item.dtype.kind not in "iu" or isinstance(item, Tensor) and (
                item.dtype.floating) or not isinstance(item, int | np.integer | slice | np.ndarray | Tensor | None
                                                       | type(...)):
            raise UserError(f"x[...] takes integers, slices, None, ... and masks, not {type(item).__name__} "
                            f"{getattr(item, 'dtype', '')}".rstrip())
        else:
            items.append(item)
    used = sum(_takes_dimension(item) and item is not ... for item in items)
    places = [i for i, item in enumerate(items) if item is ...]
    if used > x.ndim or len(places) > 1:
        raise NoSuchIndex(f"{used} indices{' and more than one ...' if len(places) > 1 else ''} for {list(x.shape)}")
    at = places[0] if places else len(items)
    items[at:at + 1] = [slice(None)] * (x.ndim - used)
    for first, shape in masks:
        first += x.ndim - used - 1 if first > at else 0
        _check_mask(x, sum(map(_takes_dimension, items[:first])), shape)
    return items


def _takes_dimension(item: Any) -> bool:
    return item is not None and not isinstance(item, bool)


def _check_mask(x: Tensor, dim: int, shape: tuple[int, ...]) -> None:
    """Raise NoSuchIndex unless a mask of this shape has the sizes of x from dimension ``dim`` on."""
    if x.shape[dim:dim + len(shape)] != shape:
        sizes = list(x.shape[dim:dim + len(shape)])
        raise NoSuchIndex(f"a mask {list(shape)} for dimensions {sizes} of {list(x.shape)}")


def _parsed(x: Tensor, key: Any) -> tuple[Parts, Chosen]:
    """Return the view that the slices in ``key`` select, and, by the view's dimension, the indices to look up in it."""
    parts: list[Part] = []
    chosen: Chosen = {}
    dim = shown = 0  # dimensions of x, and of the view
    for item in _expanded(x, key):
        if item is None:
            parts.append(None)
        elif isinstance(item, bool):
            parts.append(None)
            chosen[shown] = np.zeros(int(item), np.int64)
        elif isinstance(item, slice):
            parts.append(_slice(item, x.shape[dim]))
        elif isinstance(item, int | np.integer):
            parts.append(_integer(int(item), x.shape[dim], dim))
            shown -= 1
        else:
            parts.append(())
            chosen[shown] = item if isinstance(item, Tensor) else _inside(item, x.shape[dim], dim)
        dim += _takes_dimension(item)
        shown += 1
    return tuple(parts), chosen


def _inside(numbers: Array, size: int, dim: int) -> Array:
    """Return indices as non-negative integers; negative ones count from the end. Raises NoSuchIndex if out of range."""
    if numbers.size:
        _integer(int(numbers.min()), size, dim)
        _integer(int(numbers.max()), size, dim)
    return np.where(numbers < 0, numbers + size, numbers).astype(np.int64)


def _uploaded(numbers: Array) -> Tensor:
    return apply(UPLOAD, shape=numbers.shape, dtype=int64, data=numbers)


def _from_zero(numbers: Tensor, size: int) -> Tensor:
    """Return a tensor of indices as non-negative int64; negative ones count from the end."""
    if numbers.dtype is uint8:
        return convert(numbers, int64)
    numbers = convert(numbers, int64)
    return where(compare(numbers, 0, "<"), shift(numbers, size), numbers)


def _flat(chosen: Chosen, sizes: Sequence[int]) -> Tensor:
    """Return flat indices for the indices of several dimensions, as if these were one dimension in C order."""
    arrays = list(chosen.values())
    if all(isinstance(a, np.ndarray) for a in arrays):
        return _uploaded(np.asarray(np.ravel_multi_index(np.broadcast_arrays(*arrays), tuple(sizes))))
    tensors = [_from_zero(a, size) if isinstance(a, Tensor) else _uploaded(a)
               for a, size in zip(arrays, sizes, strict=True)]
    flat = tensors[0]
    for tensor, size in zip(tensors[1:], sizes[1:], strict=True):
        flat = add(scale(flat, size), tensor)
    return flat


def _looked_up(x: Tensor, chosen: Chosen) -> Tensor:
    """Return x[..., indices, ...], by ``embedding``: the indexed dimensions become the rows of a table."""
    dims, rest = tuple(chosen), tuple(i for i in range(x.ndim) if i not in chosen)
    sizes, kept = [x.shape[i] for i in dims], tuple(x.shape[i] for i in rest)
    numbers = _flat(chosen, sizes)
    table = reshape(x if dims + rest == tuple(range(x.ndim)) else permute(x, dims + rest), (prod(sizes), prod(kept)))
    y = reshape(embedding(table, numbers), (*numbers.shape, *kept))
    adjacent = dims == tuple(range(dims[0], dims[-1] + 1))
    if not adjacent or dims[0] == 0:  # as in NumPy, indexed dimensions that are not adjacent come first
        return y
    new = tuple(range(numbers.ndim))
    others = tuple(range(numbers.ndim, y.ndim))
    return permute(y, others[:dims[0]] + new + others[dims[0]:])


def _as_run(numbers: Array | Tensor) -> tuple[int, int, int] | None:
    """Return (start, stop, step) of the slice that selects the same elements as a list of indices; None without one."""
    if not isinstance(numbers, np.ndarray) or numbers.ndim != 1 or not numbers.size:
        return None
    step = int(numbers[1] - numbers[0]) if numbers.size > 1 else 1
    start = int(numbers[0])
    runs = step > 0 and (numbers == start + step * np.arange(numbers.size)).all()
    return (start, int(numbers[-1]) + 1, step) if runs else None


def index(x: Tensor, key: Any) -> Tensor:
    """Return x[key]: a view for integers, slices, None and ...; a copy for lists, arrays, tensors or masks.
    Raises NoSuchIndex if out of range, and for a mask of other sizes; ShapeError for indices that do not broadcast or a
    step below 1; UserError for other keys, a tensor's number out of range, and a mask on a device without values."""
    parts, chosen = _parsed(x, key)
    if not chosen:
        return view_of(x, parts)
    shown = [i for i, part in enumerate(parts) if not isinstance(part, int)]
    at = shown[next(iter(chosen))]
    run = _as_run(next(iter(chosen.values()))) if len(chosen) == 1 and parts[at] is not None else None
    if run is not None:
        return apply(CONTIGUOUS, view_of(x, (*parts[:at], run, *parts[at + 1:])))
    return _looked_up(view_of(x, parts) if any(part != () for part in parts) else x, chosen)


def assign(x: Tensor, key: Any, value: Tensor | float) -> None:
    """Set x[key] = value in place; value: a number, or a tensor or array that broadcasts; for a mask one value.
    Raises the errors of ``index``; UserError for lists and tensors of integers, and for a mask and several values."""
    if isinstance(value, np.ndarray):
        value = apply(UPLOAD, shape=value.shape, dtype=x.dtype, data=value)
    if isinstance(key, bool | np.bool_):
        if not key:
            return  # a mask that is true nowhere
        key = ...
    if isinstance(key, Tensor) and key.dtype is boolean:
        mask = key
        _check_mask(x, 0, mask.shape)
        while mask.ndim < x.ndim:
            mask = unsqueeze(mask, mask.ndim)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UserError(f"x[mask] = y takes one value, not a tensor {list(value.shape)}; use where(mask, y, x)")
        other = reshape(convert(value, x.dtype), ()) if isinstance(value, Tensor) else value
        copy_(x, where(mask, other, x))
        return
    parts, chosen = _parsed(x, key)
    if chosen:
        raise UserError("x[...] = y takes integers, slices and a mask; for lists and tensors of integers use where()")
    target = view_of(x, parts)
    if isinstance(value, Tensor):
        copy_(target, expand(convert(value, x.dtype), target.shape))
    else:
        fill_(target, value)


def rows(x: Tensor) -> Any:
    """Return an iterator over x[0], x[1], ... along the first dimension."""
    return (index(x, i) for i in range(len(x)))


for _name, _function in {"__getitem__": index, "__setitem__": assign, "__iter__": rows}.items():
    setattr(Tensor, _name, _function)
