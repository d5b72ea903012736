"""Strided views of parts of tensors, such as x[1:, None, ::2]; splitting and joining along one dimension."""

from collections.abc import Sequence
from itertools import accumulate

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Parts, Shape, chosen, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import axes_of, axis_of
from minidl.ops.shape import concat, permute
from minidl.parts.slice_rules import Rule, Slices
from minidl.tensor import Gradients, Needs, Tensor


def _infer(x: Meta, *, parts: Parts) -> Meta:
    shape, strides, distance = chosen(x.shape, x.strides, parts)
    return meta(shape, x.dtype, strides, x.offset + distance)


def _grad_infer(dy: Meta, onto: Meta | None = None, *, shape: Shape, parts: Parts) -> Meta:
    return meta(shape, dy.dtype)


def _vjp(needs: Needs, dy: Tensor, *, x_shape: Shape, x_partial: Tensor | None, parts: Parts) -> Gradients:
    # dy is added in place to the gradient that x has from its other parts, so a loop over parts costs only the parts.
    onto = () if x_partial is None else (donate(x_partial),)
    return (apply(INDEX_GRAD, donate(dy), *onto, shape=x_shape, parts=parts),)


def _grad_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of an index's gradient: writing the part, and clearing the rest unless it is added to another."""
    rest = 0 if len(inputs) > 1 else outputs[0].nbytes - inputs[0].nbytes
    return Cost(0.0, float((1 + len(inputs)) * inputs[0].nbytes + rest), "copy")


def _beside_batch(*shapes: str) -> Slices:
    """Return the slicing rule: a call may run slice by slice if it takes the first dimension whole and keeps it first.
    """
    def rule(inputs: Sequence[Meta], attrs: Attrs, sliced: Sequence[bool]) -> Rule | None:
        return Rule((True,) * len(inputs), shapes=shapes) if attrs["parts"][:1] == ((),) else None
    return rule


INDEX_GRAD = Op("index_grad", _grad_infer, _grad_cost, donates=((0, 1),), exact=True,
                slices=_beside_batch("shape"))
INDEX = Op("index", _infer, view=True, exact=True, vjp=_vjp, slices=_beside_batch())


def view_of(x: Tensor, parts: Parts) -> Tensor:
    """Return the view of x given by one index or slice per dimension, with None for each new dimension."""
    return apply(INDEX, x, parts=parts)


def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """Return a view of x with dimensions ``first`` and ``second`` swapped. Raises ShapeError if out of range."""
    if not x.shape and {first, second} <= {0, -1}:
        return permute(x, ())
    order = list(range(x.ndim))
    a, b = axis_of("transpose", x.shape, first), axis_of("transpose", x.shape, second)
    order[a], order[b] = b, a
    return permute(x, tuple(order))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return a view of x with a new dimension of size 1 at position ``dim``. Raises ShapeError if out of range."""
    at = axis_of("unsqueeze", (*x.shape, 1), dim)
    return view_of(x, (*((),) * at, None, *((),) * (x.ndim - at)))


def squeeze(x: Tensor, dim: int | Shape | None = None) -> Tensor:
    """Return a view of x without those of the dimensions ``dim`` (None: all) that have size 1. Raises ShapeError."""
    gone = axes_of("squeeze", x.shape, dim)
    return view_of(x, tuple(0 if n == 1 and i in gone else () for i, n in enumerate(x.shape)))


def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of x's parts along one dimension, of one size (the last may be smaller) or of the given sizes.
    Raises ShapeError if a list of sizes does not add up to the dimension, or a single size is below 1."""
    axis = axis_of("split", x.shape, dim)
    total = x.shape[axis]
    if isinstance(sizes, int):
        if sizes < 1:
            raise ShapeError(f"split: parts must have at least 1 element, not {sizes}")
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)] or [0]
    if sum(sizes) != total or min(sizes, default=0) < 0:
        raise ShapeError(f"split: parts {list(sizes)} do not add up to dimension {axis} of {list(x.shape)}")
    ends = list(accumulate(sizes))
    return tuple(view_of(x, (*((),) * axis, (end - size, end, 1), *((),) * (x.ndim - axis - 1)))
                 for size, end in zip(sizes, ends, strict=True))


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of at most ``chunks`` parts of x along one dimension, of one size except for the last.
    Raises ShapeError for a dimension out of range or fewer than 1 part."""
    if chunks < 1:
        raise ShapeError(f"chunk: there must be at least 1 part, not {chunks}")
    return split(x, max(1, -(-x.shape[axis_of("chunk", x.shape, dim)] // chunks)), dim)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors along an existing dimension, by default the first; empty vectors fit any. Raises ShapeError."""
    held = [x for x in tensors if x.shape != (0,)]
    return concat(held or tensors, dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors of one shape and dtype along a new dimension. Raises ShapeError if shapes or dtypes differ."""
    if not tensors:
        raise ShapeError("nothing to stack")
    return concat([unsqueeze(x, dim) for x in tensors], axis_of("stack", (*tensors[0].shape, 1), dim))


for _name, _function in {"transpose": transpose, "unsqueeze": unsqueeze, "squeeze": squeeze, "split": split,
                         "chunk": chunk}.items():
    setattr(Tensor, _name, _function)
