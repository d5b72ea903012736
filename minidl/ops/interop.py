"""What Python and NumPy ask of a tensor: copies, arrays, comparisons. Importing this attaches them to Tensor."""

from __future__ import annotations

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
    """The value for ``np.asarray(x)``: a copy, as ``numpy()``. Raises ValueError where NumPy was told not to copy."""
    if copy is False:
        raise ValueError("the values of a tensor cannot be seen without a copy: leave copy=False out")
    return x.numpy() if dtype is None else x.numpy().astype(dtype)


def formatted(x: Tensor, specification: str) -> str:
    """The value's, for a tensor without dimensions: ``f"{loss:.3f}"``. Raises WrongKind for others."""
    if not specification:
        return repr(x)
    if x.shape:
        raise WrongKind(f"a tensor of shape {list(x.shape)} has no format {specification!r}: only one without "
                        "dimensions is a number")
    return format(x.item(), specification)


def copied(x: Tensor) -> Tensor:
    """``copy.copy(x)``: another handle on the same bytes, as an assignment is another name."""
    return x.alias()


def deep_copied(x: Tensor, memo: dict[int, Any]) -> Tensor:
    """``copy.deepcopy(x)``: a leaf of its own with the same value and gradient. Raises UserError for what an operation
    has made: a copy would have no graph."""
    storage = x.storage
    if x.operation_name:
        raise UserError(f"copy.deepcopy() of {storage.named()}, the result of {x.operation_name}: only a leaf can be "
                        "copied so; use detach().contiguous() for its value")
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
    """A tensor's bytes are its runtime's: TypeError, as everything has it that cannot be pickled."""
    raise TypeError("a tensor cannot be pickled: keep x.numpy(), or a model's state_dict()")


for _name, _function in {"__array__": array, "__format__": formatted, "__copy__": copied, "__deepcopy__": deep_copied,
                         "__reduce_ex__": refuse_to_pickle}.items():
    setattr(Tensor, _name, _function)
