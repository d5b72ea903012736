"""Rules by which operations run on slices of a batch. A rule is part of an operation's definition (``Op.slices``).

A slice is a range of a tensor along its first dimension. A rule says which inputs a call can take slice by slice, and
which outputs are slices again. Any other output is one tensor for the whole batch, such as a sum: the results of the
slices are united by an operation, the fold. An operation without a rule runs on whole tensors.
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
    """How one call runs on slices. Inputs and outputs are named by position, attributes by name.

    along     for each input: True if a slice's call takes its slice of the input; False if it takes all of it
    whole     the outputs that are one tensor for the whole batch; the others are slices
    fold      the operation that unites the ``whole`` outputs of two slices: of those so far, and of the next one
    counted   True if the fold has the attributes ``count`` and ``other``: how many examples each of the two is of
    shapes    attributes that are shapes, whose first extent must be that of the slice
    start     the attribute to set to the number of elements of the first input in the slices before this one
    first     the attribute to set to the number of examples in the slices before this one
    shared    inputs that are scaled for each slice: by its share n/N of the examples, or by ``share``
    shares    ``whole`` outputs that are scaled in the same way, before the fold
    share     the operation that scales by the labels that count, as some are ignored: (value, labels of the slice,
              labels of the batch) -> value * their number in the slice / their number in the batch
    labels    the input with these labels; -1 if there is none"""

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


def sizes_of(rows: int, count: int) -> tuple[int, ...]:
    """Return the numbers of rows of ``count`` slices of ``rows`` rows; the first ones may have one row more."""
    each, rest = divmod(rows, count)
    return tuple([each + (i < rest) for i in range(count)])


def rows_of_rank(rows: int, slices: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return (first row, row after the last) of a rank's slices, when ``rows`` rows are cut in ``slices`` for all."""
    sizes, each = sizes_of(rows, slices), slices // ranks
    return sum(sizes[:each * rank]), sum(sizes[:each * (rank + 1)])


# (metas of the inputs, attributes, for each input True if it is in slices) -> the rule of the call, or None if it must
# run on whole tensors.
Slices = Callable[[Sequence[Meta], dict[str, Any], Sequence[bool]], Rule | None]


def along(*indices: int, dims: int = 1, **details: Any) -> Slices:
    """Make the rule for an operation whose inputs at ``indices`` are taken slice by slice, and all others whole.
    dims: no rule if the first of these inputs has fewer dimensions. details: further fields of ``Rule``."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        if len(inputs[indices[0]].shape) < dims:
            return None
        return Rule(tuple([i in indices for i in range(len(inputs))]), **details)
    return rule


def _with_batch(inputs: Sequence[Meta], ndim: int) -> tuple[bool, ...]:
    """Return for each input whether its first dimension is the batch, in a broadcast to ``ndim`` dimensions."""
    batch = max(m.shape[0] for m in inputs if len(m.shape) == ndim)
    return tuple([len(m.shape) == ndim and m.shape[0] == batch for m in inputs])


def elementwise(start: str = "") -> Slices:
    """Make the rule for an elementwise operation: inputs that have the batch dimension are taken slice by slice.
    Inputs that are broadcast along the batch are taken whole. start: as in ``Rule``."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        ndim = max(len(m.shape) for m in inputs)
        return Rule(_with_batch(inputs, ndim), start=start) if ndim else None
    return rule


def scaled(shape: Sequence[int], size: int, total: int) -> tuple[int, ...] | None:
    """Return the shape of a slice of ``size`` of ``total`` examples; None if its first extent would be no integer."""
    if not shape or shape[0] * size % total:
        return None
    return (shape[0] * size // total, *shape[1:])


def reshaping(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
    """Return the rule of a reshape: it keeps the order of elements, so a reshaped slice is a slice of the result."""
    return Rule((True,), shapes=("shape",)) if attrs["shape"] and inputs[0].shape else None


def permuting(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
    """Return the rule of a permutation of dimensions; None unless the batch stays the first dimension."""
    return Rule((True,)) if attrs["axes"][:1] == (0,) else None


def expanding(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
    """Return the rule of a broadcast to a shape; None unless the batch stays the first dimension, of equal length."""
    shape, x = attrs["shape"], inputs[0].shape
    return Rule((True,), shapes=("shape",)) if len(shape) == len(x) and shape[:1] == x[:1] else None


def beside_batch(*shapes: str) -> Slices:
    """Make the rule for an operation along an axis, all of whose inputs have the batch; no rule along the batch itself.
    shapes: as in ``Rule``."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        return Rule((True,) * len(inputs), shapes=shapes) if attrs["axis"] != 0 else None
    return rule


def summing(fold: Op) -> Slices:
    """Make the rule for a sum to a given shape. If it sums over the batch, ``fold`` adds up the sums of the slices."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        x, shape = inputs[0].shape, attrs["shape"]
        if len(shape) == len(x) and shape[0] == x[0]:
            return Rule((True,), shapes=("shape",))
        return Rule((True,), whole=(0,), fold=fold) if prod(x) else None
    return rule


def multiplying(fold: Op) -> Slices:
    """Make the rule for a matrix product: slice by slice along a batch dimension, or along the rows of the first input.
    If it sums over the rows of both inputs, as in a weight's gradient, ``fold`` adds up the products of the slices."""
    def rule(inputs: Sequence[Meta], attrs: dict[str, Any], sliced: Sequence[bool]) -> Rule | None:
        ndim = max(len(m.shape) for m in inputs)
        if ndim > 2:
            return Rule(_with_batch(inputs, ndim))
        if attrs["transpose_a"]:
            return None if attrs["transpose_b"] else Rule((True, True), whole=(0,), fold=fold)
        return Rule((True, False)) if sliced[0] and not sliced[1] else None
    return rule
