"""Strided views of parts of tensors, such as x[1:, None, ::2]; splitting and joining along one dimension."""

from collections.abc import Sequence
from itertools import accumulate

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, Meta, Parts, Shape, chosen, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import axes_of, axis_of, whole
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


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return a view of input with dimensions ``dim0`` and ``dim1`` swapped. Raises ShapeError if out of range."""
    if not input.shape and {dim0, dim1} <= {0, -1}:
        return permute(input, ())
    order = list(range(input.ndim))
    a, b = axis_of("transpose", input.shape, dim0), axis_of("transpose", input.shape, dim1)
    order[a], order[b] = b, a
    return permute(input, tuple(order))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Return a view of input with a new dimension of size 1 at position ``dim``. Raises ShapeError if out of range."""
    at = axis_of("unsqueeze", (*input.shape, 1), dim)
    return view_of(input, (*((),) * at, None, *((),) * (input.ndim - at)))


def squeeze(input: Tensor, dim: int | Shape | None = None) -> Tensor:
    """Return a view of input without those of the dimensions ``dim`` (None: all) that have size 1.
    Raises ShapeError for a dimension that is repeated or out of range."""
    gone = axes_of("squeeze", input.shape, dim)
    return view_of(input, tuple(0 if n == 1 and i in gone else () for i, n in enumerate(input.shape)))


def split(tensor: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of the tensor's parts along one dimension, of one size or of the sizes in a list.
    With one size, at least 1, the last part may be smaller. Raises ShapeError for smaller ones, and for a list that
    does not add up to the dimension."""
    axis = axis_of("split", tensor.shape, dim)
    total = tensor.shape[axis]
    if not hasattr(split_size, "__iter__"):
        split_size, = whole((split_size,))
        if split_size < 1:
            raise ShapeError(f"split: parts must have at least 1 element, not {split_size}")
        split_size = [min(split_size, total - start) for start in range(0, total, split_size)] or [0]
    if sum(split_size) != total or min(split_size, default=0) < 0:
        raise ShapeError(f"split: parts {list(split_size)} do not add up to dimension {axis} of {list(tensor.shape)}")
    ends = list(accumulate(split_size))
    return tuple(view_of(tensor, (*((),) * axis, (end - size, end, 1), *((),) * (tensor.ndim - axis - 1)))
                 for size, end in zip(split_size, ends, strict=True))


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views of at most ``chunks`` parts of input along one dimension, of one size except for the last.
    Raises ShapeError for a dimension out of range or fewer than 1 part."""
    if chunks < 1:
        raise ShapeError(f"chunk: there must be at least 1 part, not {chunks}")
    return split(input, max(1, -(-input.shape[axis_of("chunk", input.shape, dim)] // chunks)), dim)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors along an existing dimension, by default the first; empty vectors fit any.
    Raises ShapeError for no tensors, and if other sizes or dtypes differ."""
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
