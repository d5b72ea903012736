"""More of PyTorch's functions that create tensors.
They make empty tensors, tensors like others, random numbers in place, typed tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.meta import DType, float32, float64, int32, int64
from minidl.ops.creation import Sizes, full, tensor, zeros
from minidl.ops.inplace import written
from minidl.ops.shape import sizes_of
from minidl.ops.update import normal_ as normal_update
from minidl.ops.update import uniform_ as uniform_update
from minidl.runtime import current_runtime
from minidl.tensor import Tensor


def empty(*sizes: Sizes, dtype: DType | None = None, device: object = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of zeros, never old contents, so that every run has the same bits. ``device`` has no effect."""
    return zeros(*sizes, dtype=dtype or float32, requires_grad=requires_grad)


def empty_like(input: Tensor, *, dtype: DType | None = None, device: object = None,
               requires_grad: bool = False) -> Tensor:
    """Return zeros with input's shape and dtype. ``device`` has no effect."""
    return zeros(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def from_numpy(ndarray: np.ndarray) -> Tensor:
    """Return a tensor with a copy of a NumPy ndarray, in its dtype. Raises UserError for other objects."""
    if not isinstance(ndarray, np.ndarray):
        raise UserError(f"from_numpy takes an array, not a {type(ndarray).__name__}; tensor(x) takes other data")
    return tensor(ndarray)


def as_tensor(data: Any, *, dtype: DType | None = None, device: object = None) -> Tensor:
    """Return a tensor converted to ``dtype`` (None: itself), or a new tensor of other data; ``device`` has no effect.
    Raises UserError for data that are no numbers."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)
    return tensor(data, dtype=dtype)


def new_zeros(x: Tensor, *sizes: Sizes, dtype: DType | None = None, device: object = None,
              requires_grad: bool = False) -> Tensor:
    """Return zeros with x's dtype. ``device`` has no effect."""
    return full(sizes_of(sizes), 0.0, dtype=dtype or x.dtype, requires_grad=requires_grad)


def new_ones(x: Tensor, *sizes: Sizes, dtype: DType | None = None, device: object = None,
             requires_grad: bool = False) -> Tensor:
    """Return ones with x's dtype. ``device`` has no effect."""
    return full(sizes_of(sizes), 1.0, dtype=dtype or x.dtype, requires_grad=requires_grad)


def new_full(x: Tensor, size: Sizes, fill_value: float, *, dtype: DType | None = None, device: object = None) -> Tensor:
    """Return a tensor with one value in all elements, and x's dtype. ``device`` has no effect."""
    return full(size, fill_value, dtype=dtype or x.dtype)


def new_tensor(x: Tensor, data: Any, *, dtype: DType | None = None, device: object = None,
               requires_grad: bool = False) -> Tensor:
    """Return a leaf tensor with a copy of ``data``, in x's dtype. ``device`` has no effect."""
    return tensor(data, dtype=dtype or x.dtype, requires_grad=requires_grad)


def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Overwrite x with normal random numbers; returns x."""
    normal_update(x, seed=current_runtime().next_seed(), mean=mean, std=std)
    return x


def uniform_(x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Overwrite x with uniform random numbers in [low, high); returns x."""
    uniform_update(x, seed=current_runtime().next_seed(), low=low, high=high)
    return x


def bernoulli_(x: Tensor, p: float = 0.5) -> Tensor:
    """Overwrite each element of x with 1 with probability p, else 0; returns x."""
    draws = zeros(x.shape)
    uniform_(draws)
    return written(x, lambda y: (draws < p).to(y.dtype))


def normal(mean: float, std: float, size: Sequence[int]) -> Tensor:
    """Return a tensor of shape ``size`` of normal random numbers with a mean and a standard deviation."""
    return normal_(zeros(tuple(size)), mean, std)


def bernoulli(input: Tensor) -> Tensor:
    """Return a tensor of input's shape whose element i is 1 with probability input[i], else 0."""
    draws = zeros(input.shape)
    uniform_(draws)
    return (draws < input).to(input.dtype)


class _Kind(type):
    """The type of ``FloatTensor`` and its like: a tensor of their dtype counts as one of their instances."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Tensor) and x.dtype is getattr(cls, "dtype", None)


class FloatTensor(metaclass=_Kind):
    """A constructor: ``FloatTensor(values)`` returns ``tensor(values, dtype=float32)``; with sizes it returns zeros.
    Raises UserError for a tuple of integers, which PyTorch takes for sizes if it is a shape, else for values."""

    dtype = float32

    def __new__(cls, *data: Any) -> Tensor:  # type: ignore[misc]  # as in PyTorch a constructor of tensors
        if data and all(isinstance(n, int) for n in data):
            return zeros(*data, dtype=cls.dtype)
        if len(data) == 1 and isinstance(data[0], tuple) and data[0] and all(isinstance(n, int) for n in data[0]):
            raise UserError(f"{cls.__name__}: {data[0]} may be values or sizes: tensor({list(data[0])}) or "
                            f"empty({data[0]}) says which")
        return tensor(data[0] if data else [], dtype=cls.dtype)


class DoubleTensor(FloatTensor):
    """A constructor of float64 tensors: ``DoubleTensor(values)``, or with sizes a tensor of zeros."""

    dtype = float64


class LongTensor(FloatTensor):
    """A constructor of int64 tensors: ``LongTensor(values)``, or with sizes a tensor of zeros."""

    dtype = int64


class IntTensor(FloatTensor):
    """A constructor of int32 tensors: ``IntTensor(values)``, or with sizes a tensor of zeros."""

    dtype = int32


def is_floating_point(input: Tensor) -> bool:
    """Return True if input's elements are floating-point numbers."""
    return input.dtype.floating


for _name, _function in {"new_zeros": new_zeros, "new_ones": new_ones, "new_full": new_full, "new_tensor": new_tensor,
                         "new_empty": new_zeros, "normal_": normal_, "uniform_": uniform_,
                         "bernoulli_": bernoulli_}.items():
    setattr(Tensor, _name, _function)
