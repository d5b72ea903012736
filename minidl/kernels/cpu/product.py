"""Matrix products for compiled code, with the sums in registers: C = A B, or C + A B, by tiles of a few vectors.

  for each panel of B (the columns of three vectors, laid out as [k][columns]), for each ROWS rows of A:
      sums[ROWS][columns] = A[:, 0] B[0, :] + A[:, 1] B[1, :] + ...,  then stored, or added to C

A vector is a vector register of the processor. A is read directly, with a stride for rows and one for columns, so it
may be transposed. B has to be packed into panels; code that computes B, such as the columns of a convolution, writes
panels at no extra cost. An element of C is a sum in the order of k: its bits depend on where k is cut, but not on
tiles, threads, or the rest of the matrix.

A tile is as large as the registers allow: 8 x 3 vectors with 32 of them, 4 x 3 with 16; the other registers hold a row
of B. Compare Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008); unlike there, A is not
packed, because a row of A is read along cache lines. Arrays are flat.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from minidl.kernels.cpu.compiled import compiled
from minidl.kernels.cpu.vectors import INT64, REGISTERS, Vectors, intrinsic, lanes

ROWS = REGISTERS // 4
_VECTORS = 3


def _tile(rows: int, vectors: int) -> Any:
    """Return code for C[rows, n] = A[rows, k] panel[k, n] (or +=); n ends within the last of ``vectors`` vectors."""
    @intrinsic
    def tile(typing_context: Any, c: Any, c_at: Any, ldc: Any, a: Any, a_at: Any, a_row: Any, a_column: Any, b: Any,
             b_at: Any, n: Any, k: Any, keep: Any) -> Any:
        index = types.intp
        signature = types.void(c, index, index, a, index, index, index, b, index, index, index, types.boolean)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c_, c_at_, ldc_, a_, a_at_, a_row_, a_column_, b_, b_at_, n_, k_, keep_ = args
            # Not inlined: a caller's constant stride of 1 would change the inner loop for the worse.
            builder.function.attributes.add("noinline")
            v = Vectors(context, builder, c.dtype)
            to, left, right = v.at(c, c_, c_at_), v.at(a, a_, a_at_), v.at(b, b_, b_at_)
            mask = v.below(builder.sub(n_, ir.Constant(INT64, (vectors - 1) * v.count)))
            cells = [(i, j) for i in range(rows) for j in range(vectors)]
            sums = {cell: cgutils.alloca_once_value(builder, v.zero) for cell in cells}
            for cell in cells:  # they may still hold the previous tile's sums
                builder.store(v.zero, sums[cell])
            with cgutils.for_range(builder, k_) as loop:
                row = v.step(right, builder.mul(loop.index, ir.Constant(INT64, _VECTORS * v.count)))
                b_row = [v.load(v.step(row, j * v.count)) for j in range(vectors)]
                a_column = v.step(left, builder.mul(loop.index, a_column_))
                for i in range(rows):
                    factor = v.spread(builder.load(v.step(a_column, builder.mul(a_row_, ir.Constant(INT64, i)))))
                    for j in range(vectors):
                        builder.store(v.multiply_add(factor, b_row[j], builder.load(sums[i, j])), sums[i, j])
            place = {(i, j): v.step(to, builder.add(builder.mul(ldc_, ir.Constant(INT64, i)),
                                                    ir.Constant(INT64, j * v.count))) for i, j in cells}
            masks = [mask if j == vectors - 1 else None for j in range(vectors)]
            with builder.if_then(builder.trunc(keep_, ir.IntType(1)) if keep_.type != ir.IntType(1) else keep_):
                for i, j in cells:
                    total = builder.fadd(builder.load(sums[i, j]), v.load(place[i, j], masks[j]))
                    builder.store(total, sums[i, j])
            for i, j in cells:
                v.store(builder.load(sums[i, j]), place[i, j], masks[j])
            return context.get_dummy_value()
        return signature, generate
    return tile


_TILE_3, _TILE_2, _TILE_1 = (_tile(ROWS, vectors) for vectors in (3, 2, 1))
_ROW_3, _ROW_2, _ROW_1 = (_tile(1, vectors) for vectors in (3, 2, 1))


@compiled
def multiply(c: Any, c_at: int, ldc: int, a: Any, a_at: int, a_row: int, a_column: int, b: Any, b_at: int, m: int,
             n: int, k: int, keep: bool) -> None:
    """C[m, n] = A[m, k] B[k, n], plus the present C if ``keep``.

    C is c from element c_at on, ldc elements per row; A[i, j] = a[a_at + i a_row + j a_column]; B is in panels from
    b_at.
    """
    count = lanes(c)
    for left in range(0, n, _VECTORS * count):
        there = b_at + left * k
        wide = min(_VECTORS * count, n - left)
        for top in range(0, m, ROWS):
            to, origin = c_at + top * ldc + left, a_at + top * a_row
            if m - top >= ROWS:
                if wide > 2 * count:
                    _TILE_3(c, to, ldc, a, origin, a_row, a_column, b, there, wide, k, keep)
                elif wide > count:
                    _TILE_2(c, to, ldc, a, origin, a_row, a_column, b, there, wide, k, keep)
                else:
                    _TILE_1(c, to, ldc, a, origin, a_row, a_column, b, there, wide, k, keep)
            else:
                for i in range(m - top):
                    if wide > 2 * count:
                        _ROW_3(c, to + i * ldc, ldc, a, origin + i * a_row, a_row, a_column, b, there, wide, k, keep)
                    elif wide > count:
                        _ROW_2(c, to + i * ldc, ldc, a, origin + i * a_row, a_row, a_column, b, there, wide, k, keep)
                    else:
                        _ROW_1(c, to + i * ldc, ldc, a, origin + i * a_row, a_row, a_column, b, there, wide, k, keep)
