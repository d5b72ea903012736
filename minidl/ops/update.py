"""Operations that write in place or create values, without gradients: optimizer steps, fills, random numbers, uploads.

One optimizer call updates many parameters. Its inputs are groups: all parameters, then all tensors of each state, then
all gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minidl.dispatch import apply, apply_all
from minidl.errors import ShapeError
from minidl.meta import Cost, DType, Meta, Shape, float32, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import must_hold, numbers, plain_number, whole
from minidl.ops.shape import copy_cost
from minidl.parts.slice_rules import along
from minidl.tensor import Tensor

# The signature of ``Op.cost``.
Costs = Callable[[Sequence[Meta], Sequence[Meta], Attrs], Cost]


def _update_cost(written: int) -> Costs:
    def cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
        nbytes = sum(m.nbytes for m in inputs)
        return Cost(float(nbytes), float(nbytes + sum(m.nbytes for m in inputs[:written])), "elementwise")
    return cost


def _groups(count: int) -> Callable[..., tuple[Meta, ...]]:
    def infer(*tensors: Meta, **attrs: Any) -> tuple[Meta, ...]:
        n, rest = divmod(len(tensors), count)
        if rest or any(tensors[i].shape != tensors[g * n + i].shape for g in range(1, count) for i in range(n)):
            shapes = [list(t.shape) for t in tensors]
            raise ShapeError(f"an update needs {count} equal groups of tensors, not shapes {shapes}")
        return ()
    return infer


def _group_cost(groups: int) -> Costs:
    def cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
        return _update_cost(len(inputs) * (groups - 1) // groups)(inputs, outputs, attrs)
    return cost


def _group_mutates(groups: int) -> Callable[[int], Sequence[int]]:
    return lambda n: range(n * (groups - 1) // groups)


def _no_output(a: Meta, **attrs: Any) -> tuple[Meta, ...]:
    return ()


def _pair_infer(a: Meta, b: Meta) -> tuple[Meta, ...]:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ShapeError(f"in place: {a} and {b} differ")
    return ()


def _add_infer(a: Meta, b: Meta) -> tuple[Meta, ...]:
    return _pair_infer(numbers(a), b)


SGD = Op("sgd_", _groups(2), _group_cost(2), mutates=_group_mutates(2), update=True,
         volatile=("lr", "weight_decay"))
SGD_MOMENTUM = Op("sgd_momentum_", _groups(3), _group_cost(3), mutates=_group_mutates(3), update=True,
                  volatile=("lr", "momentum", "weight_decay"))
ADAM = Op("adam_", _groups(4), _group_cost(4), mutates=_group_mutates(4), update=True,
          volatile=("lr", "beta1", "beta2", "eps", "weight_decay", "step"))
ADADELTA = Op("adadelta_", _groups(4), _group_cost(4), mutates=_group_mutates(4), update=True,
              volatile=("lr", "rho", "eps", "weight_decay"))
ADD_ = Op("add_", _add_infer, _update_cost(1), exact=True, mutates=lambda n: (0,), slices=along(0, 1))
COPY_ = Op("copy_", _pair_infer, copy_cost, exact=True, mutates=lambda n: (0,), slices=along(0, 1))
FILL_ = Op("fill_", _no_output, _update_cost(1), exact=True, mutates=lambda n: (0,), volatile=("value",),
           slices=along(0))
NORMAL_ = Op("normal_", _no_output, _update_cost(1), mutates=lambda n: (0,), volatile=("seed", "mean", "std"))
UNIFORM_ = Op("uniform_", _no_output, _update_cost(1), mutates=lambda n: (0,), volatile=("seed", "low", "high"))
FULL = Op("full", lambda *, shape, dtype, value: meta(shape, dtype),
          lambda inputs, outputs, attrs: Cost(0.0, float(outputs[0].nbytes), "elementwise"), volatile=("value",))
# `data` is a host array, or None if only its shape matters. An upload cannot be replayed.
UPLOAD = Op("upload", lambda *, shape, dtype, data: meta(shape, dtype),
            lambda inputs, outputs, attrs: Cost(0.0, float(outputs[0].nbytes), "link"),
            volatile=("data",), replayable=False)
UPLOAD_ = Op("upload_", _no_output, lambda inputs, outputs, attrs: Cost(0.0, float(inputs[0].nbytes), "link"),
             mutates=lambda n: (0,), volatile=("data",), exact=True)


def full(shape: Shape, value: float, dtype: DType = float32) -> Tensor:
    """Return a new tensor with ``value`` in all elements; an integer dtype cuts fractions.
    Raises UserError for a value beyond its range, WrongKind for what is no number."""
    must_hold("full", dtype, value)
    return apply(FULL, shape=whole(shape), dtype=dtype, value=value)


def add_(a: Tensor, b: Tensor) -> None:
    """Add b to a in place. Raises ShapeError if their shapes or dtypes differ."""
    apply_all(ADD_, a, b)


def copy_(a: Tensor, b: Tensor) -> None:
    """Overwrite a with b. Raises ShapeError if their shapes or dtypes differ."""
    apply_all(COPY_, a, b)


def fill_(a: Tensor, value: float) -> None:
    """Overwrite every element of a with ``value``; an integer dtype cuts fractions.
    Raises UserError for a value beyond its range, WrongKind for what is no number."""
    must_hold("fill_", a.dtype, value)
    apply_all(FILL_, a, value=value)


def normal_(a: Tensor, *, seed: int, mean: float = 0.0, std: float = 1.0) -> None:
    """Overwrite a with normal random numbers of this mean and standard deviation, determined by the seed.
    Raises WrongKind for what is no number."""
    apply_all(NORMAL_, a, seed=seed, mean=plain_number("normal_", mean), std=plain_number("normal_", std))


def uniform_(a: Tensor, *, seed: int, low: float = 0.0, high: float = 1.0) -> None:
    """Overwrite a with uniform random numbers in [low, high), determined by the seed.
    Raises WrongKind for what is no number."""
    apply_all(UNIFORM_, a, seed=seed, low=plain_number("uniform_", low), high=plain_number("uniform_", high))


def upload_(a: Tensor, data: Any) -> None:
    """Overwrite a with the values of a host array, converted to a's dtype. Raises ShapeError for another shape."""
    shape = np.shape(data)
    if shape != a.shape:
        raise ShapeError(f"upload: data of shape {list(shape)} for a tensor of shape {list(a.shape)}")
    apply_all(UPLOAD_, a, data=data)
