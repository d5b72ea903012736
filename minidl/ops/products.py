"""Products of matrices and vectors, norms and einsum, under PyTorch's names, composed of ``matmul`` and sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from minidl.errors import ShapeError
from minidl.meta import Shape
from minidl.ops import linear
from minidl.ops.arguments import axis_of
from minidl.ops.arithmetic import add, compare, div, mul, sub
from minidl.ops.choose import convert, masked_fill
from minidl.ops.elementwise import broadcast, expand, scale
from minidl.ops.elementwise import sum as sum_
from minidl.ops.functions import clamp, root
from minidl.ops.library import absolute, pow_of
from minidl.ops.parts import transpose, unsqueeze
from minidl.ops.ranking import amax, amin
from minidl.ops.shape import permute, reshape
from minidl.ops.update import full
from minidl.tensor import Tensor

Axes = int | Shape | None


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the product of matrices, broadcast over leading dimensions; a vector is a row if left, a column if right.
    Raises ShapeError for inner sizes or leading dimensions that do not fit."""
    if input.ndim > 1 and other.ndim > 1:
        return linear.matmul(input, other)
    if not input.ndim or not other.ndim:
        raise ShapeError(f"matmul needs matrices or vectors, not {list(input.shape)} and {list(other.shape)}")
    y = linear.matmul(unsqueeze(input, 0) if input.ndim == 1 else input,
                      unsqueeze(other, 1) if other.ndim == 1 else other)
    shape = list(y.shape)
    if other.ndim == 1:
        del shape[-1]
    if input.ndim == 1:
        del shape[-2 if other.ndim > 1 else -1]
    return reshape(y, tuple(shape))


def _dims(what: str, *pairs: tuple[Tensor, int]) -> None:
    if any(x.ndim != ndim for x, ndim in pairs):
        raise ShapeError(f"{what} needs tensors of {' and '.join(str(n) for _, n in pairs)} dimensions, not "
                         f"{' and '.join(str(list(x.shape)) for x, _ in pairs)}")


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two matrices. Raises ShapeError for other dimensions, or inner sizes that differ."""
    _dims("mm", (input, 2), (mat2, 2))
    return linear.matmul(input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the products of two batches of matrices, [B, n, k] and [B, k, m]. Others raise ShapeError."""
    _dims("bmm", (input, 3), (mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise ShapeError(f"bmm: the batches have {input.shape[0]} and {mat2.shape[0]} matrices")
    return linear.matmul(input, mat2)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Return the product of a matrix and a vector. Raises ShapeError for other dimensions, or sizes that differ."""
    _dims("mv", (input, 2), (vec, 1))
    return matmul(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Return the dot product of two vectors. Raises ShapeError for other dimensions, or sizes that differ."""
    _dims("dot", (input, 1), (tensor, 1))
    if input.shape != tensor.shape:
        raise ShapeError(f"dot: the vectors {list(input.shape)} and {list(tensor.shape)} differ in size")
    return sum_(mul(input, tensor))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the outer product of two vectors: [n] and [m] -> [n, m]. Raises ShapeError for other tensors."""
    _dims("outer", (input, 1), (vec2, 1))
    return mul(unsqueeze(input, 1), vec2)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * input + alpha * (mat1 mat2), matrices; input broadcasts, and is not read if beta is 0.
    Raises ShapeError for other dimensions, and for sizes or dtypes that do not fit."""
    y = scale(mm(mat1, mat2), alpha) if alpha != 1 else mm(mat1, mat2)
    return y if beta == 0 else add(y, scale(input, beta) if beta != 1 else input)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * input + alpha * (batch1 batch2) for batches of matrices. Raises ShapeError as ``addmm`` does."""
    y = scale(bmm(batch1, batch2), alpha) if alpha != 1 else bmm(batch1, batch2)
    return y if beta == 0 else add(y, scale(input, beta) if beta != 1 else input)


def trace(input: Tensor) -> Tensor:
    """Return the sum of a matrix's diagonal. Raises ShapeError for anything but a matrix."""
    _dims("trace", (input, 2))
    return sum_(diagonal(input))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a copy of the diagonals of the matrices in dimensions dim1 and dim2, as the last dimension.
    ``offset``: columns to the right of the main diagonal. Raises ShapeError for a dimension that is out of range."""
    rows, columns = axis_of("diagonal", input.shape, dim1), axis_of("diagonal", input.shape, dim2)
    if rows == columns:
        raise ShapeError(f"diagonal: dimensions {dim1} and {dim2} of {list(input.shape)} are the same")
    size = max(0, min(input.shape[rows] - max(0, -offset), input.shape[columns] - max(0, offset)))
    order = (rows, columns, *(i for i in range(input.ndim) if i not in (rows, columns)))
    first, second = np.arange(size) + max(0, -offset), np.arange(size) + max(0, offset)
    y = permute(input, order)[first, second]
    return permute(y, (*range(1, y.ndim), 0))


def norm(input: Tensor, p: float | str | None = 2, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the p-norm (sum of |input|^p)^(1/p) over ``dim``, by default over all dimensions.

    p = inf gives the largest |input|, p = 0 the number of nonzero elements. A norm of 0 has gradient 0.
    Raises ShapeError for other text than "fro" and for a bad ``dim``."""
    if p in ("fro", None):
        p = 2
    if isinstance(p, str):
        raise ShapeError(f"norm: p must be a number, inf or 'fro', not {p!r}")
    if p == 2:
        return root(sum_(mul(input, input), dim, keepdim))
    size = absolute(input)
    if p == float("inf"):
        return amax(size, dim, keepdim)
    if p == -float("inf"):
        return amin(size, dim, keepdim)
    if p == 0:
        return convert(sum_(compare(input, 0, "!="), dim, keepdim), input.dtype)
    if p == 1:
        return sum_(size, dim, keepdim)
    nothing = compare(size, 0, "==")  # whose power has no gradient
    powers = pow_of(masked_fill(size, nothing, 1.0), full((), float(p), input.dtype))
    total = sum_(masked_fill(powers, nothing, 0.0 if p > 0 else float("inf")), dim, keepdim)
    zero = compare(total, 0, "==")
    return masked_fill(pow_of(masked_fill(total, zero, 1.0), full((), 1.0 / p, input.dtype)), zero, 0.0)


def normalize(input: Tensor, p: float = 2.0, dim: int | Shape = 1, eps: float = 1e-12) -> Tensor:
    """Return input / max(p-norm of input along ``dim``, eps). Raises ShapeError for a dimension out of range."""
    return div(input, clamp(norm(input, p, dim, keepdim=True), min=eps))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between x1 and x2 along ``dim``; norms count as at least ``eps``.
    Raises ShapeError for a misfit of shapes."""
    def unit(x: Tensor) -> Tensor:
        return div(x, clamp(norm(x, 2, dim, keepdim=True), min=eps))
    shape = broadcast(x1.shape, x2.shape)
    x1, x2 = expand(x1, shape), expand(x2, shape)
    return sum_(mul(unit(x1), unit(x2)), dim)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Return the p-norm distances of all pairs of rows: [..., n, d] and [..., m, d] -> [..., n, m].
    ``compute_mode`` has no effect. Raises ShapeError if d differs or the leading dimensions do not broadcast."""
    return norm(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p, -1)


# Einstein's sums ----------------------------------------------------------------------------------------------------
def _terms(equation: str, operands: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result of an einsum; unused capitals replace ``...``.
    Raises ShapeError for labels that do not fit the operands."""
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"einsum: {equation!r} needs {len(terms)} operands, not {len(operands)}")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    most = 0
    for i, (term, x) in enumerate(zip(terms, operands, strict=True)):
        rest = x.ndim - len(term.replace("...", ""))
        if rest < 0 or rest and "..." not in term:
            raise ShapeError(f"einsum: {term!r} in {equation!r} does not fit {list(x.shape)}")
        terms[i] = term.replace("...", "".join(free[:rest][::-1]))
        most = max(most, rest)
        if len(set(terms[i])) < len(terms[i]):
            raise ShapeError(f"einsum: a label occurs twice in {term!r}; take the diagonal first")
    wide = "".join(free[:most][::-1])
    if arrow:
        return terms, result.replace("...", wide)
    counts = "".join(terms)
    return terms, wide + "".join(sorted(c for c in set(counts) - set(wide) if counts.count(c) == 1))


def _contract(a: Tensor, left: str, b: Tensor, right: str, kept: str) -> tuple[Tensor, str]:
    """Contract two operands by batched matrix products; return the result and its labels. kept: labels needed later."""
    def reduced(x: Tensor, labels: str, other: str) -> tuple[Tensor, str]:
        alone = tuple(i for i, c in enumerate(labels) if c not in other and c not in kept)
        return (sum_(x, alone), "".join(c for i, c in enumerate(labels) if i not in alone)) if alone else (x, labels)
    a, left = reduced(a, left, right)
    b, right = reduced(b, right, left)
    shared = [c for c in left if c in right]
    batch = [c for c in shared if c in kept]
    inner = [c for c in shared if c not in kept]
    rows, columns = [c for c in left if c not in shared], [c for c in right if c not in shared]
    sizes: dict[str, int] = {}
    for labels, x in ((left, a), (right, b)):
        for c, n in zip(labels, x.shape, strict=True):
            sizes[c] = n if sizes.get(c, 1) == 1 else sizes[c]

    def arranged(x: Tensor, labels: str, groups: Sequence[Sequence[str]]) -> Tensor:
        order = [c for group in groups for c in group]
        x = permute(x, tuple(labels.index(c) for c in order))
        x = x.expand(*[sizes[c] for c in order]) if order else x
        return reshape(x, tuple([prod(sizes[c] for c in group) for group in groups]))
    y = linear.matmul(arranged(a, left, (batch, rows, inner)), arranged(b, right, (batch, inner, columns)))
    labels = "".join([*batch, *rows, *columns])
    return reshape(y, tuple(sizes[c] for c in labels)), labels


def einsum(equation: str, *operands: Any) -> Tensor:
    """Return an Einstein summation: ``einsum("bij,bjk->bik", a, b)``.

    It contracts two operands at a time, in the order of NumPy's greedy ``einsum_path``. Raises ShapeError for labels
    that do not fit the operands, and for a label that occurs twice in one operand.
    """
    tensors: list[Tensor] = list(operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple)
                                 else operands)
    terms, result = _terms(equation, tensors)
    if len(tensors) > 2:
        shown = [np.broadcast_to(np.float32(0), x.shape) for x in tensors]
        try:
            path: list[Any] = np.einsum_path(",".join(terms) + "->" + result, *shown, optimize="greedy")[0][1:]
        except ValueError as error:
            raise ShapeError(f"einsum: {equation!r} does not fit {[list(x.shape) for x in tensors]}: {error}") from None
    else:
        path = [tuple(range(len(tensors)))]
    for step in path:
        chosen = sorted(step, reverse=True)
        picked = [(tensors.pop(i), terms.pop(i)) for i in chosen][::-1]
        x, labels = picked[0]
        for other, more in picked[1:]:
            x, labels = _contract(x, labels, other, more, result + "".join(terms))
        tensors.append(x)
        terms.append(labels)
    x, labels = tensors[0], terms[0]
    gone = tuple(i for i, c in enumerate(labels) if c not in result)
    x = sum_(x, gone) if gone else x
    labels = "".join(c for c in labels if c in result)
    if sorted(labels) != sorted(result):
        raise ShapeError(f"einsum: the result of {equation!r} has labels that its operands do not have")
    return permute(x, tuple(labels.index(c) for c in result)) if labels != result else x


def transposed(x: Tensor) -> Tensor:
    """Return a view of x with its last two dimensions swapped. Raises ShapeError for fewer than two."""
    return transpose(x, -2, -1)


FUNCTIONS = {"matmul": matmul, "mm": mm, "bmm": bmm, "mv": mv, "dot": dot, "outer": outer, "ger": outer,
             "addmm": addmm, "baddbmm": baddbmm, "trace": trace, "diagonal": diagonal, "norm": norm, "cdist": cdist}
