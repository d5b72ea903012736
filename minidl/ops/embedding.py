"""Look up rows by index: of a table (embedding), or of each sequence of a batch (gather_rows).
Gradients add rows up."""

from collections.abc import Sequence

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError
from minidl.meta import Cost, DType, Meta, Shape, meta
from minidl.op import Attrs, Op
from minidl.ops.elementwise import ADD
from minidl.ops.shape import copy_cost
from minidl.parts.slice_rules import along
from minidl.tensor import Tensor


def _embedding_infer(w: Meta, ids: Meta, *, dtype: DType | None = None) -> Meta:
    if len(w.shape) != 2 or ids.dtype.floating:
        raise ShapeError(f"embedding needs a table [rows, width] and integer row numbers, not {w} and {ids}")
    return meta((*ids.shape, w.shape[1]), dtype or w.dtype)


def _embedding_grad_infer(dy: Meta, ids: Meta, *, rows: int, dtype: DType | None = None) -> Meta:
    return meta((rows, dy.shape[-1]), dtype or dy.dtype)


def _gather_infer(x: Meta, positions: Meta) -> Meta:
    if len(x.shape) != 3 or len(positions.shape) != 2 or positions.dtype.floating or x.shape[0] != positions.shape[0]:
        raise ShapeError(f"gather_rows needs [N, L, D] and integer positions [N, P], not {x} and {positions}")
    return meta((positions.size, x.shape[2]), x.dtype)


def _gather_grad_infer(dy: Meta, positions: Meta, *, x_shape: Shape) -> Meta:
    return meta(x_shape, dy.dtype)


def _scatter_cost(inputs: Sequence[Meta], outputs: Sequence[Meta], attrs: Attrs) -> Cost:
    """Return the cost of clearing the output, and of reading each row of dy and adding it to a row of the output."""
    return Cost(float(inputs[0].size), float(outputs[0].nbytes + 3 * inputs[0].nbytes), "copy")


def _embedding_grad(dy: Tensor, ids: Tensor, rows: int, dtype: DType) -> Tensor:
    mixed = {} if dy.dtype is dtype else {"dtype": dtype}
    return apply(EMBEDDING_GRAD, donate(dy), ids, rows=rows, **mixed)


# The gradient of a table is dense, as optimizers need it, and outlives the activations.
EMBEDDING_GRAD = Op("embedding_grad", _embedding_grad_infer, _scatter_cost, long_lived=True, integers=("ids",),
                    slices=along(0, 1, whole=(0,), fold=ADD))
EMBEDDING = Op("embedding", _embedding_infer, copy_cost, integers=("ids",), exact=True, checks=True,
               slices=along(1),
               vjp=lambda needs, dy, ids, *, w_shape, w_dtype: (_embedding_grad(dy, ids, w_shape[0], w_dtype), None))
GATHER_ROWS_GRAD = Op("gather_rows_grad", _gather_grad_infer, _scatter_cost, integers=("positions",),
                      slices=along(0, 1, shapes=("x_shape",)))
# The same for positions that a program gives, and not those of a lookup that was checked.
ADD_ROWS = Op("add_rows", _gather_grad_infer, _scatter_cost, integers=("positions",), checks=True,
              slices=along(0, 1, shapes=("x_shape",)),
              vjp=lambda needs, dy, positions: (gather_rows(dy, positions), None))
GATHER_ROWS = Op("gather_rows", _gather_infer, copy_cost, integers=("positions",), exact=True, checks=True,
                 slices=along(0, 1),
                 vjp=lambda needs, dy, positions, *, x_shape:
                 (apply(GATHER_ROWS_GRAD, donate(dy), positions, x_shape=x_shape), None))


def embedding(w: Tensor, ids: Tensor, *, dtype: DType | None = None) -> Tensor:
    """Return rows of a table. w: [rows, width], ids: integers of any shape, below rows -> [*ids.shape, width].
    dtype: of the result, to which the rows are rounded; default: the table's. The gradient has the table's dtype.
    Raises ShapeError for other tensors; UserError for a row out of range, which on a GPU is NaN instead."""
    return apply(EMBEDDING, w, ids) if dtype is None or dtype is w.dtype else apply(EMBEDDING, w, ids, dtype=dtype)


def gather_rows(x: Tensor, positions: Tensor) -> Tensor:
    """Return the rows ``positions`` of each sequence. x: [N, L, D], positions: [N, P], integers below L -> [N P, D].
    Raises ShapeError for other shapes; UserError for a row out of range, whose elements are NaN on a GPU."""
    return apply(GATHER_ROWS, x, positions)


def add_rows(rows: Tensor, positions: Tensor, shape: Shape) -> Tensor:
    """Return zeros [N, L, D] with rows added at ``positions`` of each sequence. rows: [N P, D], positions: [N, P].
    Raises UserError for a position out of range, which a GPU leaves out instead."""
    return apply(ADD_ROWS, rows, positions, x_shape=shape)
