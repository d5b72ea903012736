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


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of matrices, broadcast over leading dimensions; a vector is a row if left, a column if right.
    Raises ShapeError for inner sizes or leading dimensions that do not fit."""
    if a.ndim > 1 and b.ndim > 1:
        return linear.matmul(a, b)
    if not a.ndim or not b.ndim:
        raise ShapeError(f"matmul needs matrices or vectors, not {list(a.shape)} and {list(b.shape)}")
    y = linear.matmul(unsqueeze(a, 0) if a.ndim == 1 else a, unsqueeze(b, 1) if b.ndim == 1 else b)
    shape = list(y.shape)
    if b.ndim == 1:
        del shape[-1]
    if a.ndim == 1:
        del shape[-2 if b.ndim > 1 else -1]
    return reshape(y, tuple(shape))


def _dims(what: str, *pairs: tuple[Tensor, int]) -> None:
    if any(x.ndim != ndim for x, ndim in pairs):
        raise ShapeError(f"{what} needs tensors of {' and '.join(str(n) for _, n in pairs)} dimensions, not "
                         f"{' and '.join(str(list(x.shape)) for x, _ in pairs)}")


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices. Raises ShapeError for other dimensions, or inner sizes that differ."""
    _dims("mm", (a, 2), (b, 2))
    return linear.matmul(a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of two batches of matrices, [B, n, k] and [B, k, m]. Raises ShapeError."""
    _dims("bmm", (a, 3), (b, 3))
    if a.shape[0] != b.shape[0]:
        raise ShapeError(f"bmm: the batches have {a.shape[0]} and {b.shape[0]} matrices")
    return linear.matmul(a, b)


def mv(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of a matrix and a vector. Raises ShapeError for other dimensions, or sizes that differ."""
    _dims("mv", (a, 2), (b, 1))
    return matmul(a, b)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the dot product of two vectors. Raises ShapeError for other dimensions, or sizes that differ."""
    _dims("dot", (a, 1), (b, 1))
    if a.shape != b.shape:
        raise ShapeError(f"dot: the vectors {list(a.shape)} and {list(b.shape)} differ in size")
    return sum_(mul(a, b))


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Return the outer product of two vectors: [n] and [m] -> [n, m]. Raises ShapeError."""
    _dims("outer", (a, 1), (b, 1))
    return mul(unsqueeze(a, 1), b)


def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * (a b) for matrices a and b. Raises ShapeError."""
    y = scale(mm(a, b), alpha) if alpha != 1 else mm(a, b)
    return y if beta == 0 else add(y, scale(x, beta) if beta != 1 else x)


def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * (a b) for batches of matrices a and b. Raises ShapeError."""
    y = scale(bmm(a, b), alpha) if alpha != 1 else bmm(a, b)
    return y if beta == 0 else add(y, scale(x, beta) if beta != 1 else x)


def trace(x: Tensor) -> Tensor:
    """Return the sum of a matrix's diagonal. Raises ShapeError for anything but a matrix."""
    _dims("trace", (x, 2))
    return sum_(diagonal(x))


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a copy of the diagonals of the matrices in dimensions dim1 and dim2, as the last dimension.
    ``offset``: columns to the right of the main diagonal. Raises ShapeError."""
    rows, columns = axis_of("diagonal", x.shape, dim1), axis_of("diagonal", x.shape, dim2)
    if rows == columns:
        raise ShapeError(f"diagonal: dimensions {dim1} and {dim2} of {list(x.shape)} are the same")
    size = max(0, min(x.shape[rows] - max(0, -offset), x.shape[columns] - max(0, offset)))
    order = (rows, columns, *(i for i in range(x.ndim) if i not in (rows, columns)))
    first, second = np.arange(size) + max(0, -offset), np.arange(size) + max(0, offset)
    y = permute(x, order)[first, second]
    return permute(y, (*range(1, y.ndim), 0))


def norm(x: Tensor, p: float | str | None = 2, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return the p-norm (sum of |x|^p)^(1/p) over ``dim``, by default over all dimensions.

    p = inf gives the largest |x|, p = 0 the number of nonzero elements. A norm of 0 has gradient 0. Raises ShapeError.
    """
    if p in ("fro", None):
        p = 2
    if isinstance(p, str):
        raise ShapeError(f"norm: p must be a number, inf or 'fro', not {p!r}")
    if p == 2:
        return root(sum_(mul(x, x), dim, keepdim))
    size = absolute(x)
    if p == float("inf"):
        return amax(size, dim, keepdim)
    if p == -float("inf"):
        return amin(size, dim, keepdim)
    if p == 0:
        return convert(sum_(compare(x, 0, "!="), dim, keepdim), x.dtype)
    if p == 1:
        return sum_(size, dim, keepdim)
    total = sum_(pow_of(size, full((), float(p), x.dtype)), dim, keepdim)
    zero = compare(total, 0, "==")
    return masked_fill(pow_of(masked_fill(total, zero, 1.0), full((), 1.0 / p, x.dtype)), zero, 0.0)


def normalize(x: Tensor, p: float = 2.0, dim: int | Shape = 1, eps: float = 1e-12) -> Tensor:
    """Return x / max(norm of x along ``dim``, eps). Raises ShapeError."""
    return div(x, clamp(norm(x, p, dim, keepdim=True), min=eps))


def cosine_similarity(a: Tensor, b: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between a and b along ``dim``; norms count as at least ``eps``.
    Raises ShapeError for a misfit of shapes."""
    def unit(x: Tensor) -> Tensor:
        return div(x, clamp(norm(x, 2, dim, keepdim=True), min=eps))
    shape = broadcast(a.shape, b.shape)
    a, b = expand(a, shape), expand(b, shape)
    return sum_(mul(unit(a), unit(b)), dim)


def cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Return the p-norm distances of all pairs of rows: [..., n, d] and [..., m, d] -> [..., n, m].
    ``compute_mode`` has no effect. Raises ShapeError."""
    return norm(sub(unsqueeze(a, -2), unsqueeze(b, -3)), p, -1)


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

    It contracts two operands at a time, in the order of NumPy's greedy ``einsum_path``. Raises ShapeError.
    """
    tensors: list[Tensor] = list(operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple)
                                 else operands)
    terms, result = _terms(equation, tensors)
    if len(tensors) > 2:
        shown = [np.broadcast_to(np.float32(0), x.shape) for x in tensors]
        path: list[Any] = np.einsum_path(",".join(terms) + "->" + result, *shown, optimize="greedy")[0][1:]
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
