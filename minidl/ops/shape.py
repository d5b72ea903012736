"""Views (reshape, permute, narrow), the copies that undo them (contiguous, concat, ``narrow_grad``), and casts."""

from collections.abc import Sequence
from math import prod

from minidl.dispatch import apply
from minidl.errors import ShapeError
from minidl.meta import Cost, DType, Meta, Shape, meta
from minidl.op import Attrs, Op
from minidl.ops.arguments import axes_of, axis_of, loses_gradient, whole
from minidl.parts.slice_rules import along, beside_batch, permuting, reshaping
from minidl.tensor import Gradients, Needs, Tensor


def copy_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of a copy: every element is read once and written once."""
    return Cost(0.0, float(2 * sum(m.nbytes for m in outputs)), "copy")


def _reshape_infer(x: Meta, *, shape: Shape) -> Meta:
    if not x.contiguous:
        raise ShapeError(f"reshape needs a contiguous tensor, not strides {x.strides} of {list(x.shape)}")
    if prod(shape) != x.size:
        raise ShapeError(f"cannot reshape {list(x.shape)} ({x.size} elements) to {list(shape)} ({prod(shape)})")
    return meta(shape, x.dtype, None, x.offset)


def _permute_infer(x: Meta, *, axes: Shape) -> Meta:
    if sorted(axes) != list(range(len(x.shape))):
        raise ShapeError(f"axes {list(axes)} do not permute the {len(x.shape)} dimensions of {list(x.shape)}")
    return meta(tuple(x.shape[a] for a in axes), x.dtype, tuple(x.strides[a] for a in axes), x.offset)


def _narrow_infer(x: Meta, *, axis: int, start: int, stop: int) -> Meta:
    if not 0 <= start <= stop <= x.shape[axis]:
        raise ShapeError(f"slice {start}:{stop} of axis {axis} is outside {list(x.shape)}")
    shape = x.shape[:axis] + (stop - start,) + x.shape[axis + 1:]
    return meta(shape, x.dtype, x.strides, x.offset + start * x.strides[axis])


def _narrow_grad_infer(dy: Meta, *, shape: Shape, axis: int, start: int) -> Meta:
    return meta(shape, dy.dtype)


def _concat_infer(*xs: Meta, axis: int) -> Meta:
    first = xs[0]
    for x in xs[1:]:
        alike = x.dtype is first.dtype and len(x.shape) == len(first.shape)
        if not alike or x.shape[:axis] + x.shape[axis + 1:] != first.shape[:axis] + first.shape[axis + 1:]:
            raise ShapeError(f"cannot concatenate {first} and {x} along axis {axis}")
    total = sum(x.shape[axis] for x in xs)
    return meta(first.shape[:axis] + (total,) + first.shape[axis + 1:], first.dtype)


def _cast_infer(x: Meta, *, dtype: DType) -> Meta:
    if not (x.dtype.floating and dtype.floating):
        raise ShapeError(f"cannot cast {x} to {dtype.name}: both must be floating")
    return meta(x.shape, dtype)


def _cast_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    return Cost(0.0, float(inputs[0].nbytes + outputs[0].nbytes), "copy")


def _concat_vjp(needs: Needs, dy: Tensor, *, axis: int, input_shapes: tuple[Shape, ...]) -> Gradients:
    parts: list[Tensor | None] = []
    start = 0
    for need, shape in zip(needs, input_shapes, strict=True):
        stop = start + shape[axis]
        parts.append(between(dy, axis, start, stop) if need else None)
        start = stop
    return tuple(parts)


def _permute_vjp(needs: Needs, dy: Tensor, *, axes: Shape) -> Gradients:
    return (permute(dy, tuple(sorted(range(len(axes)), key=axes.__getitem__))),)


NARROW_GRAD = Op("narrow_grad", _narrow_grad_infer, copy_cost, exact=True, slices=beside_batch("shape"))
RESHAPE = Op("reshape", _reshape_infer, view=True, exact=True, slices=reshaping,
             vjp=lambda needs, dy, *, x_shape: (reshape(dy, x_shape),))
PERMUTE = Op("permute", _permute_infer, view=True, exact=True, vjp=_permute_vjp, slices=permuting)
NARROW = Op("narrow", _narrow_infer, view=True, exact=True, slices=beside_batch(),
            vjp=lambda needs, dy, *, x_shape, axis, start:
            (apply(NARROW_GRAD, dy, shape=x_shape, axis=axis, start=start),))
# Most casts are of parameters, whose gradients outlive the activations.
CAST_GRAD = Op("cast_grad", _cast_infer, _cast_cost, long_lived=True, slices=along(0))
CAST = Op("cast", _cast_infer, _cast_cost, slices=along(0),
          vjp=lambda needs, dy, *, x_dtype: (apply(CAST_GRAD, dy, dtype=x_dtype),))
CONTIGUOUS = Op("contiguous", lambda x: meta(x.shape, x.dtype), copy_cost, exact=True, vjp=lambda needs, dy: (dy,),
                slices=along(0))
CONCAT = Op("concat", _concat_infer, copy_cost, exact=True, vjp=_concat_vjp, slices=beside_batch())


def contiguous(x: Tensor) -> Tensor:
    """Return x if it is contiguous (C order), else a contiguous copy."""
    return x if x.meta.contiguous else apply(CONTIGUOUS, x)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Return x if it has the dtype, else a copy rounded to it; the gradient has x's dtype.
    Raises ShapeError unless both are floating."""
    return x if x.dtype is dtype else apply(CAST, x, dtype=dtype)


def sizes_of(given: tuple[int | Sequence[int], ...]) -> Shape:
    """Return the sizes given as several integers or as one sequence: ``view(2, 3)`` is ``view((2, 3))``.
    NumPy's integers become Python's. Raises WrongKind for a size that is no integer."""
    return whole(given[0] if len(given) == 1 and hasattr(given[0], "__iter__") else given)


def reshape(input: Tensor, *sizes: int | Shape) -> Tensor:
    """Return a view of input in another shape, of a copy if input is not contiguous; one size may be -1.
    Raises ShapeError for another number of elements."""
    shape = sizes_of(sizes)
    if min(shape, default=0) < -1 or shape.count(-1) > 1:
        raise ShapeError(f"cannot reshape {list(input.shape)} to {list(shape)}: only one size may be negative, -1")
    if shape.count(-1) == 1:
        known = -prod(shape)
        if known == 0 or input.numel() % known:
            raise ShapeError(f"cannot reshape {list(input.shape)} ({input.numel()} elements) to {list(shape)}")
        shape = tuple(input.numel() // known if d == -1 else d for d in shape)
    if shape == input.shape and not loses_gradient(input):
        return input
    return apply(RESHAPE, contiguous(input), shape=shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return input with the dimensions ``start_dim`` to ``end_dim`` (included) merged, a view if contiguous.
    Raises ShapeError for dimensions out of range or order."""
    shape = input.shape or (1,)
    start, end = axis_of("flatten", shape, start_dim), axis_of("flatten", shape, end_dim) + 1
    if start >= end:
        raise ShapeError(f"flatten: dimension {start_dim} comes after {end_dim} in {list(shape)}")
    return reshape(input, shape[:start] + (prod(shape[start:end]),) + shape[end:])


def permute(input: Tensor, *axes: int | Shape) -> Tensor:
    """Return a view of input with its dimensions in the given order; negative axes count from the end.
    Raises ShapeError unless each axis is given once."""
    return apply(PERMUTE, input, axes=axes_of("permute", input.shape, sizes_of(axes)))


def between(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Return a view of the elements start:stop along an axis; a negative axis counts from the end.
    Raises ShapeError if out of range."""
    return apply(NARROW, x, axis=axis_of("narrow", x.shape, axis), start=start, stop=stop)


def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """Return a view of ``length`` elements along one dimension from ``start`` on; a negative start counts from the end.
    A start in a tensor is copied to the host. Raises ShapeError if the elements are out of range."""
    axis = axis_of("narrow", input.shape, dim)
    start = int(start.item()) if isinstance(start, Tensor) else start
    first = start + input.shape[axis] if start < 0 else start
    return between(input, axis, first, first + length)


def concat(tensors: Sequence[Tensor], axis: int = 1) -> Tensor:
    """Join tensors along an existing axis. Raises ShapeError for none, and if dtypes or sizes of other axes differ."""
    if not tensors:
        raise ShapeError("nothing to concatenate")
    return apply(CONCAT, *tensors, axis=axis_of("concat", tensors[0].shape, axis))


def detach(input: Tensor) -> Tensor:
    """Return a view of input through which no gradient flows."""
    return apply(DETACH, input)


DETACH = Op("detach", lambda x: x, view=True, exact=True, slices=along(0))

for _name, _function in {"reshape": reshape, "permute": permute, "contiguous": contiguous, "flatten": flatten,
                         "narrow": narrow, "detach": detach, "cast": cast}.items():
    setattr(Tensor, _name, _function)
