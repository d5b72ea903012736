"""Declarations of the tensor methods that are composed of others; ``minidl.surface`` declares the rest.

Nothing here runs. Each method is a function in a module below ``minidl.ops``, whose docstring has the details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minidl.meta import Shape

if TYPE_CHECKING:
    from minidl.surface import Ranked
    from minidl.tensor import Tensor

# Other names for Python's types, because tensors have methods called float, int and bool.
Real = float
Whole = int
Truth = bool


class Named:
    """A base of Tensor that declares PyTorch's functions as methods, without state and code."""

    __slots__ = ()

    if TYPE_CHECKING:
        def absolute(self) -> Tensor:
            """Return |x|, element by element; the gradient at 0 is 0."""

        def addcdiv(self, a: Tensor, b: Tensor, *, value: Real = 1) -> Tensor:
            """Return x + value * a / b."""

        def addcmul(self, a: Tensor, b: Tensor, *, value: Real = 1) -> Tensor:
            """Return x + value * a * b."""

        def addmm(self, a: Tensor, b: Tensor, *, beta: Real = 1, alpha: Real = 1) -> Tensor:
            """Return beta * x + alpha * (a b) for matrices a and b."""

        def all(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return booleans that are True if all elements along ``dim`` are nonzero; by default of all elements."""

        def allclose(self, b: Tensor, rtol: Real = 1e-05, atol: Real = 1e-08, equal_nan: Truth = False) -> Truth:
            """True if |a - b| <= atol + rtol * |b| everywhere; ``equal_nan``: two NaN are equal."""

        def any(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return booleans that are True if any element along ``dim`` is nonzero; by default of all elements."""

        def argsort(self, dim: Whole = -1, descending: Truth = False, *, stable: Truth = True) -> Tensor:
            """Return the indices that ``sort`` returns."""

        def baddbmm(self, a: Tensor, b: Tensor, *, beta: Real = 1, alpha: Real = 1) -> Tensor:
            """Return beta * x + alpha * (a b) for batches of matrices a and b."""

        def bmm(self, b: Tensor) -> Tensor:
            """Return the products of two batches of matrices, [B, n, k] and [B, k, m]."""

        def broadcast_to(self, size: Shape) -> Tensor:
            """Return a view broadcast to a shape."""

        def cdist(self, b: Tensor, p: Real = 2.0) -> Tensor:
            """Return the distances of all pairs of rows: [..., n, d] and [..., m, d] -> [..., n, m]."""

        def ceil(self) -> Tensor:
            """Return ceil(x), element by element; the gradient is 0."""

        def clip(self, min: Tensor | Real | None = None, max: Tensor | Real | None = None) -> Tensor:
            """Return x limited to the range from ``min`` to ``max``; NaN stays NaN."""

        def cosh(self) -> Tensor:
            """Return the hyperbolic cosine of every element."""

        def count_nonzero(self, dim: Whole | Shape | None = None) -> Tensor:
            """Return the number of nonzero elements."""

        def cumprod(self, dim: Whole) -> Tensor:
            """Return cumulative products along a dimension; integers give int64."""

        def cumsum(self, dim: Whole) -> Tensor:
            """Return cumulative sums along a dimension; integers and booleans give int64."""

        def deg2rad(self) -> Tensor:
            """Return angles in radians, given in degrees."""

        def dot(self, b: Tensor) -> Tensor:
            """Return the dot product of two vectors."""

        def equal(self, b: Tensor) -> Truth:
            """True if two tensors have the same shape and values."""

        def erfc(self) -> Tensor:
            """Return 1 - erf(x), element by element; 0 where erf(x) rounds to 1."""

        def exp2(self) -> Tensor:
            """Return 2 ** x, element by element."""

        def fix(self) -> Tensor:
            """Return every element rounded towards 0; the gradient is 0."""

        def flip(self, *dims: Whole | Shape) -> Tensor:
            """Return a copy, reversed along some dimensions."""

        def frac(self) -> Tensor:
            """Return the fractional part x - trunc(x) of every element."""

        def ger(self, b: Tensor) -> Tensor:
            """Return the outer product of two vectors: [n] and [m] -> [n, m]."""

        def hypot(self, b: Tensor) -> Tensor:
            """Return sqrt(a^2 + b^2)."""

        def index_add(self, dim: Whole, index: Tensor, source: Tensor, *, alpha: Real = 1) -> Tensor:
            """Return this tensor with parts of ``source`` added at the indices ``index`` along ``dim``."""

        def index_select(self, dim: Whole, index: Tensor) -> Tensor:
            """Return a copy of parts along one dimension, selected by index."""

        def isfinite(self) -> Tensor:
            """Return booleans that are True where x is neither infinite nor NaN."""

        def isinf(self) -> Tensor:
            """Return booleans that are True where x is infinite, of either sign."""

        def isnan(self) -> Tensor:
            """Return booleans that are True where x is NaN."""

        def lerp(self, end: Tensor, weight: Tensor | Real) -> Tensor:
            """Return start + weight * (end - start)."""

        def log10(self) -> Tensor:
            """Return the logarithm to base 10 of every element."""

        def log2(self) -> Tensor:
            """Return the logarithm to base 2 of every element."""

        def logaddexp(self, b: Tensor) -> Tensor:
            """Return log(exp(a) + exp(b)), computed without overflow."""

        def logical_and(self, b: Tensor) -> Tensor:
            """Return booleans that are True where both are nonzero."""

        def logical_not(self) -> Tensor:
            """Return booleans that are True where x is zero."""

        def logical_or(self, b: Tensor) -> Tensor:
            """Return booleans that are True where at least one is nonzero."""

        def logical_xor(self, b: Tensor) -> Tensor:
            """Return booleans that are True where exactly one is nonzero."""

        def logit(self, eps: Real | None = None) -> Tensor:
            """Return log(x / (1 - x)); ``eps`` first limits x to [eps, 1 - eps]."""

        def logsumexp(self, dim: Whole | Shape, keepdim: Truth = False) -> Tensor:
            """Return log(sum(exp(x))) along ``dim``, computed without overflow."""

        def masked_select(self, mask: Tensor) -> Tensor:
            """Return the elements where a mask is true, in C order; the mask is copied to the host."""

        def mm(self, b: Tensor) -> Tensor:
            """Return the product of two matrices."""

        def moveaxis(self, source: Whole | Shape, destination: Whole | Shape) -> Tensor:
            """Return a view with dimensions moved to other positions; the others keep their order."""

        def movedim(self, source: Whole | Shape, destination: Whole | Shape) -> Tensor:
            """Return a view with dimensions moved to other positions; the others keep their order."""

        def mv(self, b: Tensor) -> Tensor:
            """Return the product of a matrix and a vector."""

        def nan_to_num(self, nan: Real = 0.0, posinf: Real | None = None, neginf: Real | None = None) -> Tensor:
            """Return x with NaN and infinities replaced.
            By default they become 0 and the largest finite numbers of its dtype."""

        def negative(self) -> Tensor:
            """Return -x, element by element."""

        def nonzero(self, *, as_tuple: Truth = False) -> Any:
            """Return the indices of nonzero elements: int64 [count, dimensions], or a vector per dimension."""

        def norm(self, p: Real | str | None = 2, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return the p-norm over ``dim``, by default over all dimensions; inf: largest |x|, 0: nonzero count."""

        def outer(self, b: Tensor) -> Tensor:
            """Return the outer product of two vectors: [n] and [m] -> [n, m]."""

        def prod(self, dim: Whole | None = None, keepdim: Truth = False) -> Tensor:
            """Return the product along a dimension, or of all elements; integers give int64."""

        def rad2deg(self) -> Tensor:
            """Return angles in degrees, given in radians."""

        def reciprocal(self, value: Real = 1.0) -> Tensor:
            """Return ``value`` / x, element by element."""

        def repeat_interleave(self, repeats: Whole | Tensor, dim: Whole | None = None) -> Tensor:
            """Return each element along a dimension repeated ``repeats`` times in a row; default: all, flat."""

        def roll(self, shifts: Whole | Shape, dims: Whole | Shape | None = None) -> Tensor:
            """Return x with its elements moved cyclically by ``shifts`` along ``dims``; without, in C order."""

        def round(self, *, decimals: Whole = 0) -> Tensor:
            """Return every element rounded to ``decimals`` decimals, halves to the even neighbour."""

        def rsqrt(self) -> Tensor:
            """Return 1 / sqrt(x), element by element."""

        def scatter(self, dim: Whole, index: Tensor, value: Real) -> Tensor:
            """Return x with a number written at the indices ``index`` along ``dim``."""

        def scatter_add(self, dim: Whole, index: Tensor, src: Tensor) -> Tensor:
            """Return x with the elements of ``src`` added at the indices ``index`` along ``dim``."""

        def select(self, dim: Whole, index: Whole) -> Tensor:
            """Return a view of part ``index`` along a dimension, which is removed."""

        def sinc(self) -> Tensor:
            """Return sin(pi x) / (pi x), element by element; 1 at 0."""

        def sinh(self) -> Tensor:
            """Return the hyperbolic sine of every element, accurate near 0."""

        def sort(self, dim: Whole = -1, descending: Truth = False, *, stable: Truth = True) -> Ranked:
            """Return the elements along a dimension, sorted, and their indices; the sort is stable."""

        def take_along_dim(self, indices: Tensor, dim: Whole) -> Tensor:
            """Return ``gather(dim, indices)``."""

        def tan(self) -> Tensor:
            """Return the tangent of every element, in radians."""

        def tile(self, *dims: Whole | Shape) -> Tensor:
            """Return a copy repeated along each of the last dimensions."""

        def trace(self) -> Tensor:
            """Return the sum of a matrix's diagonal."""

        def trunc(self) -> Tensor:
            """Return every element rounded towards 0; the gradient is 0."""

        def unbind(self, dim: Whole = 0) -> tuple[Tensor, ...]:
            """Return views of the parts along one dimension, which is removed."""

        def unflatten(self, dim: Whole, sizes: Shape) -> Tensor:
            """Return the tensor with one dimension split into several, of which one size may be -1."""
