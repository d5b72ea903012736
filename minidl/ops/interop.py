"""Python's and NumPy's special methods of Tensor: conversion to arrays, format, copies, pickling.
Importing this module attaches them."""

from typing import Any, NoReturn

import numpy as np

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import apply
from minidl.errors import UserError, WrongKind
from minidl.ops.shape import CONTIGUOUS
from minidl.ops.update import copy_
from minidl.runtime import parameter
from minidl.tensor import Tensor


def array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """Return a copy of the values, for ``np.asarray(x)``. Raises ValueError for ``copy=False``."""
    if copy is False:
        raise ValueError("an array of a tensor's values is always a copy: leave copy=False out")
    return x.numpy() if dtype is None else x.numpy().astype(dtype)


def formatted(x: Tensor, specification: str) -> str:
    """Format the value of a tensor without dimensions, for ``f"{loss:.3f}"``. Raises WrongKind for other tensors."""
    if not specification:
        return repr(x)
    if x.shape:
        raise WrongKind(f"a tensor of shape {list(x.shape)} has no format {specification!r}; only a tensor without "
                        "dimensions is a number")
    return format(x.item(), specification)


def copied(x: Tensor) -> Tensor:
    """Return another handle on the same bytes, for ``copy.copy(x)``."""
    return x.alias()


def deep_copied(x: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a new leaf with the same value and gradient, for ``copy.deepcopy(x)``.
    Raises UserError for the result of an operation, because a copy would have no graph."""
    storage = x.storage
    if x.operation_name:
        raise UserError(f"copy.deepcopy() of {storage.named()}, the result of {x.operation_name}: it copies only "
                        "leaves; use detach().contiguous() to copy the value")
    with no_grad():
        if storage.base.persistent:
            made = parameter(x.shape, dtype=x.dtype, requires_grad=False)
            copy_(made, x)
        else:
            made = apply(CONTIGUOUS, x)
            current().make_leaf(made.storage)
    made.storage.requires_grad = storage.requires_grad and storage.severed is None
    memo[id(x)] = made
    if x.grad is not None:
        made.grad = deep_copied(x.grad, memo)
    return made


def refuse_to_pickle(x: Tensor, protocol: int) -> NoReturn:
    """Raise TypeError: a tensor cannot be pickled, because its runtime owns its bytes."""
    raise TypeError("a tensor cannot be pickled; save x.numpy(), or a model's state_dict()")


for _name, _function in {"__array__": array, "__format__": formatted, "__copy__": copied, "__deepcopy__": deep_copied,
                         "__reduce_ex__": refuse_to_pickle}.items():
    setattr(Tensor, _name, _function)
