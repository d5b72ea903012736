"""Rules by which operations run on slices of a batch; they are part of an operation's definition. Facts only.

A slice is a part of a tensor along its first dimension. A rule names the operands that a call can take slice by slice,
and the kind of each output: slices again, or one value for the whole batch to which every slice adds its part. An
operation without a rule runs on whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from minidl.meta import Meta

if TYPE_CHECKING:
    from minidl.op import Op


@dataclass(frozen=True, slots=True)
class Rule:
    """How one call runs on slices.

    along     of each input: whether it is taken slice by slice; else every slice takes all of it.
    whole     outputs that are one value for the batch; the others are slices.
    fold      the operation that unites the whole outputs of the slices so far with those of the next one.
    counted   the fold's attributes ``count`` and ``other`` say how many examples either is of.
    shapes    attributes that are shapes whose first extent is the batch's.
    start     the attribute that says how many elements of the first input lie in the slices before.
    first     the attribute that says how many examples lie there.
    shared    inputs of which every slice takes its share: n of N examples, or what ``share`` makes of them.
    shares    outputs, likewise, before they are united.
    share     an operation (value, labels of the slice, labels of all) -> the slice's share of the value.
    labels    the input that are these labels.
    """

    along: tuple[bool, ...]
    whole: tuple[int, ...] = ()
    fold: Op | None = None
    counted: bool = False
    shapes: tuple[str, ...] = ()
    start: str = ""
    first: str = ""
    shared: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    share: Op | None = None
    labels: int = -1


# (inputs, attributes, which inputs are in slices) -> the rule; None if the call needs whole tensors.
Slices = Callable[[Sequence[Meta], dict[str, Any], Sequence[bool]], Rule | None]


def along(*indices: int, dims: int = 1, **details: Any) -> Slices:
    """These inputs slice by slice, all others whole, if the first of them has ``dims`` dimensions or more. details: as
    in Rule."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        if len(inputs[indices[0]].shape) < dims:
            return None
        return Rule(tuple([i in indices for i in range(len(inputs))]), **details)
    return rule


def _with_batch(inputs: Sequence[Meta], ndim: int) -> tuple[bool, ...]:
    """For each operand, whether it has the batch of a result of ``ndim`` dimensions."""
    batch = max(m.shape[0] for m in inputs if len(m.shape) == ndim)
    return tuple([len(m.shape) == ndim and m.shape[0] == batch for m in inputs])


def elementwise(start: str = "") -> Slices:
    """Operands broadcast to the shape of the result: those with its batch go slice by slice."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        ndim = max(len(m.shape) for m in inputs)
        return Rule(_with_batch(inputs, ndim), start=start) if ndim else None
    return rule


def scaled(shape: Sequence[int], size: int, total: int) -> tuple[int, ...] | None:
    """The shape for a slice of ``size`` of ``total`` examples; None if the first extent cannot be cut so."""
    if not shape or shape[0] * size % total:
        return None
    return (shape[0] * size // total, *shape[1:])


def reshaping(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
    """A reshape keeps the order of the elements, so a slice becomes a slice if the first extents allow it."""
    return Rule((True,), shapes=("shape",)) if attrs["shape"] and inputs[0].shape else None


def permuting(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
    """The batch stays in its place."""
    return Rule((True,)) if attrs["axes"][:1] == (0,) else None


def expanding(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
    """The batch stays as long as it is, and in its place."""
    shape, x = attrs["shape"], inputs[0].shape
    return Rule((True,), shapes=("shape",)) if len(shape) == len(x) and shape[:1] == x[:1] else None


def beside_batch(*shapes: str) -> Slices:
    """An operation along another axis than the batch's; all inputs have the batch."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        return Rule((True,) * len(inputs), shapes=shapes) if attrs["axis"] != 0 else None
    return rule


def summing(fold: Op) -> Slices:
    """A sum to a shape: slice by slice if the batch stays, else added up over the slices."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        x, shape = inputs[0].shape, attrs["shape"]
        if len(shape) == len(x) and shape[0] == x[0]:
            return Rule((True,), shapes=("shape",))
        return Rule((True,), whole=(0,), fold=fold) if prod(x) else None
    return rule


def multiplying(fold: Op) -> Slices:
    """A product of matrices: slice by slice along a leading dimension, or along the rows of the first operand. If the
    rows of both are summed over, as in the gradient of a weight, the slices' products are added up."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        ndim = max(len(m.shape) for m in inputs)
        if ndim > 2:
            return Rule(_with_batch(inputs, ndim))
        if attrs["transpose_a"]:
            return None if attrs["transpose_b"] else Rule((True, True), whole=(0,), fold=fold)
        return Rule((True, False)) if sliced[0] and not sliced[1] else None
    return rule
