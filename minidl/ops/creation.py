"""Functions that create tensors of the current runtime from values, one value, ranges or random numbers.

Random numbers depend on the runtime's seed (``manual_seed`` sets it); they differ from those of other libraries.
"""

from math import isfinite
from typing import Any

import numpy as np

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import apply
from minidl.errors import ShapeError, UserError
from minidl.meta import DType, Shape, boolean, float32, int64
from minidl.ops.arguments import as_dtype, axis_of, sizes_at_least_0
from minidl.ops.choose import convert, where
from minidl.ops.elementwise import div, expand, log, neg
from minidl.ops.indexing import index
from minidl.ops.ranking import topk
from minidl.ops.shape import CONTIGUOUS, sizes_of
from minidl.ops.update import UPLOAD, normal_, uniform_
from minidl.ops.update import full as full_
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

Sizes = int | Shape


def _leaf(made: Tensor) -> Tensor:
    """Return the new tensor ``made`` as a leaf that requires a gradient."""
    current().make_leaf(made.storage)
    made.requires_grad = True
    return made


def tensor(data: Any, *, dtype: DType | None = None, device: object = None, requires_grad: bool = False) -> Tensor:
    """Return a leaf with a copy of ``data``: a number, nested lists of numbers, or an array; ``device`` has no effect.
    Python floats become float32, Python integers int64; arrays keep their dtype. Raises UserError for other data."""
    if data is None:
        raise UserError("tensor needs numbers, sequences of numbers, or an array, not None")
    made = current_runtime().tensor(data.numpy() if isinstance(data, Tensor) else data, dtype=as_dtype(dtype))
    return _leaf(made) if requires_grad else made


def _uploaded(values: np.ndarray, kind: DType) -> Tensor:
    """Return a tensor with values computed on the host; it stays whole where batches are sliced."""
    dtype = as_dtype(kind) or float32
    return apply(UPLOAD, shape=values.shape, dtype=dtype, data=np.ascontiguousarray(values, dtype.name))


def full(size: Sizes, fill_value: float | Tensor, *, dtype: DType | None = None, device: object = None,
         requires_grad: bool = False) -> Tensor:
    """Return a tensor with one value in all elements. ``device`` has no effect.

    Without ``dtype``, a float gives float32, an integer int64, a boolean booleans. A value that is a tensor without
    dimensions keeps its dtype, and gradients flow to it. Raises UserError for a number beyond an integer dtype's range,
    ShapeError for a negative size.
    """
    value, dtype, shape = fill_value, as_dtype(dtype), sizes_at_least_0(sizes_of((size,)))
    if isinstance(value, Tensor):
        if value.shape:
            raise ShapeError(f"full takes a number or a tensor without dimensions, not {list(value.shape)}")
        return filled_with(value, shape, dtype)
    kind = boolean if isinstance(value, bool) else int64 if isinstance(value, int) else float32
    made = full_(shape, value, dtype or kind)
    return _leaf(made) if requires_grad else made


def filled_with(value: Tensor, shape: Shape, dtype: DType | None) -> Tensor:
    """Return a new tensor whose elements all equal ``value``, to which gradients flow."""
    return apply(CONTIGUOUS, expand(convert(value, dtype or value.dtype), shape))


def zeros(*sizes: Sizes, dtype: DType = float32, device: object = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of zeros. ``device`` has no effect: tensors live on the runtime's device."""
    return full(sizes_of(sizes), 0.0, dtype=dtype, requires_grad=requires_grad)


def ones(*sizes: Sizes, dtype: DType = float32, device: object = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of ones. ``device`` has no effect: tensors live on the runtime's device."""
    return full(sizes_of(sizes), 1.0, dtype=dtype, requires_grad=requires_grad)


def arange(start: float = 0, end: float | None = None, step: float = 1, *, dtype: DType | None = None,
           device: object = None, requires_grad: bool = False) -> Tensor:
    """Return start, start + step, ... without ``end``; arange(n) counts from 0 to n - 1. ``device`` has no effect.
    Integers give int64, others float32. Raises UserError for a step of 0 and for infinite numbers."""
    start, end = (0, start) if end is None else (start, end)
    if not step or not all(map(isfinite, (start, step, end))):
        raise UserError(f"arange: cannot count from {start} to {end} in steps of {step}")
    dtype = as_dtype(dtype)
    kind = int64 if all(isinstance(n, int | np.integer) for n in (start, end, step)) else float32
    values = np.arange(start, end, step)
    if dtype is not None and not dtype.floating:  # count in floats first, so that their number is right
        values = int(start) + int(step) * np.arange(len(values))
    made = _uploaded(values, dtype or kind)
    return _leaf(made) if requires_grad else made


def linspace(start: float, end: float, steps: int, *, dtype: DType = float32, device: object = None,
             requires_grad: bool = False) -> Tensor:
    """Return ``steps`` equally spaced numbers from ``start`` to ``end``, both included. ``device`` has no effect."""
    first, last = (float(n.item()) if isinstance(n, Tensor) else n for n in (start, end))
    made = _uploaded(np.linspace(first, last, steps), dtype)
    return _leaf(made) if requires_grad else made


def eye(n: int, m: int | None = None, *, dtype: DType = float32, device: object = None,
        requires_grad: bool = False) -> Tensor:
    """Return a matrix [n, m] with ones on the diagonal and zeros elsewhere. ``device`` has no effect."""
    made = _uploaded(np.eye(n, m), dtype)
    return _leaf(made) if requires_grad else made


def rand(*sizes: Sizes, dtype: DType = float32, device: object = None, requires_grad: bool = False) -> Tensor:
    """Return uniform random numbers in [0, 1). ``device`` has no effect."""
    made = zeros(*sizes, dtype=dtype)
    uniform_(made, seed=current_runtime().next_seed())
    return _leaf(made) if requires_grad else made


def randn(*sizes: Sizes, dtype: DType = float32, device: object = None, requires_grad: bool = False) -> Tensor:
    """Return normal random numbers with mean 0 and variance 1. ``device`` has no effect."""
    made = zeros(*sizes, dtype=dtype)
    normal_(made, seed=current_runtime().next_seed())
    return _leaf(made) if requires_grad else made


def randint(low: int, high: int | Shape | None = None, size: Shape = (), *, dtype: DType = int64,
            device: object = None) -> Tensor:
    """Return random integers n of shape ``size``: low <= n < high or, for ``randint(bound, size)``, 0 <= n < bound.
    ``device`` has no effect. Raises UserError if no integer lies between the bounds."""
    if isinstance(high, tuple | list):  # PyTorch's randint(high, size)
        size, high = tuple(high), None
    low, high = (0, low) if high is None else (low, high)
    if not low < high:
        raise UserError(f"randint: there is no integer from {low} up to but not including {high}")
    generator = np.random.Generator(np.random.Philox(key=current_runtime().next_seed()))
    return _uploaded(generator.integers(low, high, tuple(size)), dtype)


def randperm(n: int, *, device: object = None) -> Tensor:
    """Return the integers 0 to n - 1 in random order. ``device`` has no effect."""
    generator = np.random.Generator(np.random.Philox(key=current_runtime().next_seed()))
    return _uploaded(generator.permutation(n), int64)


def zeros_like(input: Tensor, *, dtype: DType | None = None, device: object = None,
               requires_grad: bool = False) -> Tensor:
    """Return zeros with input's shape and dtype. ``device`` has no effect."""
    return zeros(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: DType | None = None, device: object = None,
              requires_grad: bool = False) -> Tensor:
    """Return ones with input's shape and dtype. ``device`` has no effect."""
    return ones(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def full_like(input: Tensor, fill_value: float | Tensor, *, dtype: DType | None = None, device: object = None,
              requires_grad: bool = False) -> Tensor:
    """Return a tensor with one value in all elements, and input's shape and dtype. ``device`` has no effect."""
    return full(input.shape, fill_value, dtype=dtype or input.dtype, requires_grad=requires_grad)


def rand_like(input: Tensor, *, dtype: DType | None = None, device: object = None,
              requires_grad: bool = False) -> Tensor:
    """Return uniform random numbers in [0, 1) with input's shape and dtype. ``device`` has no effect."""
    return rand(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def randn_like(input: Tensor, *, dtype: DType | None = None, device: object = None,
               requires_grad: bool = False) -> Tensor:
    """Return normal random numbers with mean 0 and variance 1, in input's shape and dtype. ``device`` has no effect."""
    return randn(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def _lower_triangle(what: str, x: Tensor, diagonal: int) -> np.ndarray:
    axis_of(what, x.shape, -2)
    return np.tri(x.shape[-2], x.shape[-1], diagonal, dtype=bool)


def _triangle(x: Tensor, values: np.ndarray) -> Tensor:
    return where(_uploaded(values, boolean), x, 0)


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return matrices with 0 above a diagonal, ``diagonal`` columns right of the main one. Vectors raise ShapeError."""
    return _triangle(input, _lower_triangle("tril", input, diagonal))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Return matrices with 0 below a diagonal, ``diagonal`` columns right of the main one. Vectors raise ShapeError."""
    return _triangle(input, ~_lower_triangle("triu", input, diagonal - 1))


def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Return indices [.., num_samples], drawn without replacement with the weights in each row of input.
    Each row draws the indices of its largest input / e, with e exponential random numbers (Efraimidis & Spirakis 2006).
    Raises ShapeError for integers; UserError for several draws with replacement, and, if the device has values, for
    weights that are negative, infinite or NaN, or too few positive weights.
    """
    if replacement and num_samples > 1:
        raise UserError(f"multinomial draws {num_samples} only without replacement; call it more than once")
    if not input.dtype.floating:
        raise ShapeError(f"multinomial needs probabilities, not {input.meta}")
    with no_grad():
        if current().device.has_values:
            weights = input.detach().float().numpy()
            if not (np.isfinite(weights) & (weights >= 0)).all():
                raise UserError("multinomial: weights must be finite and not negative; these range from "
                                f"{weights.min()} to {weights.max()}")
            fewest = int((weights > 0).sum(-1).min(initial=num_samples))
            if fewest < num_samples:
                raise UserError(f"multinomial: cannot draw {num_samples} from a row with {fewest} positive weights")
        return topk(div(input, neg(log(rand_like(input)))), num_samples).indices


def one_hot(x: Tensor, num_classes: int) -> Tensor:
    """Return a one-hot encoding of integers, int64 [*x.shape, num_classes]; a number out of range gives zeros."""
    return convert(index(x, (..., None)) == arange(num_classes), int64)


def manual_seed(seed: int) -> None:
    """Set the seed from which the current runtime's later random numbers follow; a negative one as in 64 bits."""
    runtime = current_runtime()
    runtime.seed = seed if seed >= 0 else seed % 2**64
    runtime.counters.pop("seeds", None)


def taken(x: Any) -> Any:
    """Return a PyTorch tensor, such as a DataLoader gives, as a minidl tensor; other objects unchanged."""
    return current_runtime().tensor(x) if type(x).__module__ == "torch" and hasattr(x, "__dlpack__") else x


def is_tensor(obj: object) -> bool:
    """True if obj is a Tensor."""
    return isinstance(obj, Tensor)
