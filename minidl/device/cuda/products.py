"""Matrix products of tensors as calls of cuBLAS: order and transposition of operands, and batches.

cuBLAS is column-major: our contiguous [m, n] is its n x m. So C = A B is computed as C' = B' A', where the transposed
matrices are the same bytes. An operand needs one of its two strides to be 1; any other operand is first copied to
contiguous (``Product.copied``). Leading dimensions with a constant stride in all three operands form one strided batch.
If several batch dimensions remain, as for the heads of attention, the largest is the batch, and each index of the
others gets its own call.

Knows metas and integers; no addresses, no library.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as indices
from typing import Any

from minidl.device.cuda.seam import Gemm
from minidl.errors import UserError
from minidl.meta import Meta, meta

FLOATS = ("float32", "bfloat16", "float16", "float64")
OPERATIONS = ("matmul", "linear", "linear_dgrad", "linear_wgrad")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [..., rows, columns], by its extents and its strides in elements.

    row_stride, column_stride  elements from one row to the next, and from one column to the next
    batch                      (extent, stride) of each leading dimension
    """

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch: tuple[tuple[int, int], ...] = ()

    @property
    def transposed(self) -> "Matrix":
        """This matrix with rows and columns exchanged; the bytes are the same."""
        return Matrix(self.columns, self.rows, self.column_stride, self.row_stride, self.batch)

    @property
    def order(self) -> tuple[bool, int] | None:
        """(True if row-major else False, the leading dimension in elements); None if cuBLAS cannot read it.
        One of the strides must be 1, and the other such that rows, or columns, do not overlap."""
        if (self.column_stride == 1 or self.columns == 1) and (self.row_stride >= self.columns or self.rows == 1):
            return True, max(self.row_stride, self.columns)
        if (self.row_stride == 1 or self.rows == 1) and (self.column_stride >= self.rows or self.columns == 1):
            return False, max(self.column_stride, self.rows)
        return None


@dataclass(frozen=True, slots=True)
class Product:
    """The cuBLAS calls that make up one operation.

    calls   (product, element offset of c, of a, of b) for each; a and b are cuBLAS's, so ours in exchanged order
    copied  which of our two factors must first be copied to contiguous
    bias    True if a bias is added to the result
    """

    calls: tuple[tuple[Gemm, int, int, int], ...]
    copied: tuple[int, ...]
    bias: bool = False


def plan(op_name: str, inputs: Sequence[Meta], output: Meta, attrs: dict[str, Any], *, tf32: bool) -> Product:
    """Return how to compute an operation of OPERATIONS. Raises UserError for a dtype without products."""
    if output.dtype.name not in FLOATS:
        raise UserError(f"{op_name}: no matrix products of {output.dtype.name} on this device")
    copied = tuple([i for i, m in enumerate(inputs[:2]) if not _fits(op_name, i, m)])
    dense = [meta(m.shape, m.dtype) if i in copied else m for i, m in enumerate(inputs[:2])]
    a, b, c = _operands(op_name, dense[0], dense[1], output, attrs)
    return Product(tuple(_calls(a, b, c, output.dtype.name, tf32)), copied, len(inputs) > 2)


def _fits(op_name: str, index: int, m: Meta) -> bool:
    """Return True if cuBLAS can read an operand without a copy."""
    matrix = _matrix(m)
    if matrix.order is None:
        return False
    if op_name == "linear_wgrad":  # a sum over all rows: they must step evenly
        return _collapsed(m) is not None
    return True


def _operands(op_name: str, first: Meta, second: Meta, output: Meta,
              attrs: dict[str, Any]) -> tuple[Matrix, Matrix, Matrix]:
    """Return (a, b, c) of c = a b."""
    if op_name == "matmul":
        a, b = _matrix(first), _matrix(second)
        return (a.transposed if attrs["transpose_a"] else a, b.transposed if attrs["transpose_b"] else b,
                _matrix(output))
    if op_name == "linear_wgrad":  # dw [out, in] = dy' x over all rows
        dy, x = _collapsed(first), _collapsed(second)
        assert dy is not None and x is not None
        return dy.transposed, x, _matrix(output)
    w = _matrix(second)
    b = w.transposed if op_name == "linear" else w
    rows, result = _collapsed(first), _collapsed(output)
    if rows is None or result is None:
        rows, result = _matrix(first), _matrix(output)
    return rows, b, result


def _matrix(m: Meta) -> Matrix:
    """Return the last two dimensions of a meta as a matrix, with the others as its batch."""
    return Matrix(m.shape[-2], m.shape[-1], m.strides[-2], m.strides[-1],
                  tuple(zip(m.shape[:-2], m.strides[:-2], strict=True)))


def _collapsed(m: Meta) -> Matrix | None:
    """Return [..., n] as one matrix of all its rows; None if the rows have no constant stride."""
    dims = [(d, s) for d, s in zip(m.shape[:-1], m.strides[:-1], strict=True) if d != 1]
    for (_, outer), (extent, inner) in zip(dims, dims[1:], strict=False):
        if outer != extent * inner:
            return None
    rows = m.size // m.shape[-1]
    return Matrix(rows, m.shape[-1], dims[-1][1] if dims else m.shape[-1], m.strides[-1])


def _calls(a: Matrix, b: Matrix, c: Matrix, dtype: str, tf32: bool) -> list[tuple[Gemm, int, int, int]]:
    dims = _batch(a, b, c)
    inner = max(range(len(dims)), key=lambda i: dims[i][0], default=None)
    count, *steps = dims.pop(inner) if inner is not None else (1, 0, 0, 0)
    (a_rows, lda), (b_rows, ldb), (c_rows, ldc) = (_order(x) for x in (a, b, c))
    assert c_rows, "an output is dense"
    # C' = B' A' in column-major order: a row-major matrix already is its own transpose there.
    gemm = Gemm(dtype, not b_rows, not a_rows, c.columns, c.rows, a.columns, ldb, lda, ldc,
                steps[1], steps[0], steps[2], count, tf32=tf32 and dtype == "float32")
    calls = []
    for index in indices(*(range(extent) for extent, *_ in dims)):
        at = [sum(i * dim[operand] for i, dim in zip(index, dims, strict=True)) for operand in (1, 2, 3)]
        calls.append((gemm, at[2], at[1], at[0]))
    return calls


def _order(matrix: Matrix) -> tuple[bool, int]:
    order = matrix.order
    assert order is not None, f"{matrix} should have been copied"
    return order


def _batch(a: Matrix, b: Matrix, c: Matrix) -> list[tuple[int, int, int, int]]:
    """Return the batch dimensions as (extent, stride of a, of b, of c), merged where strides allow it."""
    lead = len(c.batch)
    spread = [((1, 0),) * (lead - len(x.batch)) + x.batch for x in (a, b, c)]
    dims: list[tuple[int, int, int, int]] = []
    for of_a, of_b, (extent, step_c) in zip(*spread, strict=True):
        if extent == 1:
            continue
        steps = (of_a[1] if of_a[0] > 1 else 0, of_b[1] if of_b[0] > 1 else 0, step_c)
        if dims and all(dims[-1][i + 1] == extent * step for i, step in enumerate(steps)):
            dims[-1] = (dims[-1][0] * extent, *steps)
        else:
            dims.append((extent, *steps))
    return dims
