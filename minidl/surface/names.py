"""Methods of tensors that are compositions, declared, as ``minidl.surface`` declares the rest. Nothing here runs.

A method is the function of its name in ``minidl.ops``, which says more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minidl.meta import Shape

if TYPE_CHECKING:
    from minidl.surface import Ranked
    from minidl.tensor import Tensor

# The names of Python's types are those of methods of tensors.
Real = float
Whole = int
Truth = bool


class Named:
    """Functions of PyTorch's as methods, with neither state nor code."""

    __slots__ = ()

    if TYPE_CHECKING:
        def absolute(self) -> Tensor:
            """|x| for every element; the gradient at 0 is 0."""

        def addcdiv(self, a: Tensor, b: Tensor, *, value: Real = 1) -> Tensor:
            """x + value a / b."""

        def addcmul(self, a: Tensor, b: Tensor, *, value: Real = 1) -> Tensor:
            """x + value a b."""

        def addmm(self, a: Tensor, b: Tensor, *, beta: Real = 1, alpha: Real = 1) -> Tensor:
            """beta x + alpha a b, of matrices a and b."""

        def all(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Whether no element is 0, along ``dim``, or of all."""

        def allclose(self, b: Tensor, rtol: Real = 1e-05, atol: Real = 1e-08) -> Truth:
            """Whether |a - b| <= atol + rtol |b| everywhere."""

        def any(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Whether an element is not 0, along ``dim``, or of all."""

        def argsort(self, dim: Whole = -1, descending: Truth = False, *, stable: Truth = True) -> Tensor:
            """The positions of ``sort``."""

        def baddbmm(self, a: Tensor, b: Tensor, *, beta: Real = 1, alpha: Real = 1) -> Tensor:
            """beta x + alpha a b, of batches of matrices a and b."""

        def bmm(self, b: Tensor) -> Tensor:
            """The products of two batches of matrices, [B, n, k] and [B, k, m]."""

        def broadcast_to(self, size: Shape) -> Tensor:
            """A view broadcast to a shape."""

        def cdist(self, b: Tensor, p: Real = 2.0) -> Tensor:
            """Distances of all rows: [..., n, d] and [..., m, d] -> [..., n, m]."""

        def ceil(self) -> Tensor:
            """The smallest integer that is not below, for every element; the gradient is 0."""

        def clip(self, min: Tensor | Real | None = None, max: Tensor | Real | None = None) -> Tensor:
            """x, but ``min`` where it is less and ``max`` where it is more; NaN stays NaN."""

        def cosh(self) -> Tensor:
            """Hyperbolic cosine of every element."""

        def count_nonzero(self, dim: Whole | Shape | None = None) -> Tensor:
            """How many elements are not 0."""

        def cumprod(self, dim: Whole) -> Tensor:
            """Products of all elements up to each one along a dimension; of integers int64."""

        def cumsum(self, dim: Whole) -> Tensor:
            """Sums of all elements up to each one along a dimension; of integers and booleans int64."""

        def deg2rad(self) -> Tensor:
            """Degrees in radians."""

        def dot(self, b: Tensor) -> Tensor:
            """The sum of the products of two vectors' elements."""

        def equal(self, b: Tensor) -> Truth:
            """Whether two tensors have one shape and the same values."""

        def erfc(self) -> Tensor:
            """1 - erf(x) for every element; it is 0 where erf(x) rounds to 1."""

        def exp2(self) -> Tensor:
            """2 to the power of every element."""

        def fix(self) -> Tensor:
            """Every element without its fraction; the gradient is 0."""

        def flip(self, *dims: Whole | Shape) -> Tensor:
            """x read backwards along some dimensions: a copy."""

        def frac(self) -> Tensor:
            """The fraction of every element, of its sign."""

        def ger(self, b: Tensor) -> Tensor:
            """All products of two vectors' elements: [n] and [m] -> [n, m]."""

        def hypot(self, b: Tensor) -> Tensor:
            """sqrt(a^2 + b^2)."""

        def index_select(self, dim: Whole, index: Tensor) -> Tensor:
            """Parts along one dimension, by number: a copy."""

        def isfinite(self) -> Tensor:
            """True where x is neither infinite nor NaN."""

        def isinf(self) -> Tensor:
            """True where x is infinite, of either sign."""

        def isnan(self) -> Tensor:
            """True where x is NaN."""

        def lerp(self, end: Tensor, weight: Tensor | Real) -> Tensor:
            """start + weight (end - start)."""

        def log10(self) -> Tensor:
            """Logarithm to base 10 of every element."""

        def log2(self) -> Tensor:
            """Logarithm to base 2 of every element."""

        def logaddexp(self, b: Tensor) -> Tensor:
            """log(exp(a) + exp(b)), without overflow."""

        def logical_and(self, b: Tensor) -> Tensor:
            """True where both are not 0."""

        def logical_not(self) -> Tensor:
            """True where x is zero."""

        def logical_or(self, b: Tensor) -> Tensor:
            """True where one is not 0."""

        def logical_xor(self, b: Tensor) -> Tensor:
            """True where just one is not 0."""

        def logit(self, eps: Real | None = None) -> Tensor:
            """log(x / (1 - x)), with x kept between eps and 1 - eps if there is one."""

        def logsumexp(self, dim: Whole | Shape, keepdim: Truth = False) -> Tensor:
            """log(sum(exp(x))) along ``dim``, without overflow."""

        def masked_select(self, mask: Tensor) -> Tensor:
            """The elements where a mask is true, in C order; the mask is read."""

        def mm(self, b: Tensor) -> Tensor:
            """The product of two matrices."""

        def moveaxis(self, source: Whole | Shape, destination: Whole | Shape) -> Tensor:
            """A view with some dimensions at other places; the others keep their order."""

        def movedim(self, source: Whole | Shape, destination: Whole | Shape) -> Tensor:
            """A view with some dimensions at other places; the others keep their order."""

        def mv(self, b: Tensor) -> Tensor:
            """The product of a matrix and a vector."""

        def nan_to_num(self, nan: Real = 0.0, posinf: Real | None = None, neginf: Real | None = None) -> Tensor:
            """x with other numbers in the place of NaN and infinities: 0, and the largest of x's dtype, by default."""

        def negative(self) -> Tensor:
            """-x, element by element."""

        def nonzero(self, *, as_tuple: Truth = False) -> Any:
            """The indices of what is not 0: [how many, dimensions] int64, or a vector for each dimension."""

        def norm(self, p: Real | str | None = 2, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """(sum of |x|^p)^(1/p) over ``dim``, all by default; inf is the largest |x|, 0 counts what is not 0."""

        def outer(self, b: Tensor) -> Tensor:
            """All products of two vectors' elements: [n] and [m] -> [n, m]."""

        def prod(self, dim: Whole | None = None, keepdim: Truth = False) -> Tensor:
            """The product along a dimension, or of all elements; of integers int64."""

        def rad2deg(self) -> Tensor:
            """Radians in degrees."""

        def reciprocal(self, value: Real = 1.0) -> Tensor:
            """``value`` / x, element by element."""

        def repeat_interleave(self, repeats: Whole | Tensor, dim: Whole | None = None) -> Tensor:
            """Each element along a dimension so many times, one after the other; without a dimension in C order."""

        def roll(self, shifts: Whole | Shape, dims: Whole | Shape | None = None) -> Tensor:
            """x moved on along some dimensions, what leaves at the end coming in again at the beginning; without
            dimensions in C order."""

        def round(self, *, decimals: Whole = 0) -> Tensor:
            """The nearest integer, the even one of two, for every element; with ``decimals`` so many digits after the
            point."""

        def rsqrt(self) -> Tensor:
            """1 / sqrt(x) for every element."""

        def scatter(self, dim: Whole, index: Tensor, value: Real) -> Tensor:
            """x with a number at the positions along ``dim`` that ``index`` names."""

        def scatter_add(self, dim: Whole, index: Tensor, src: Tensor) -> Tensor:
            """x with the elements of ``src`` added at the positions along ``dim`` that ``index``, of its shape,
            names."""

        def select(self, dim: Whole, index: Whole) -> Tensor:
            """A view of one part along a dimension, without it."""

        def sinc(self) -> Tensor:
            """sin(pi x) / (pi x) for every element, 1 at 0."""

        def sinh(self) -> Tensor:
            """Hyperbolic sine of every element: (u + u / (u + 1)) / 2 with u = exp(x) - 1, exact near 0."""

        def sort(self, dim: Whole = -1, descending: Truth = False, *, stable: Truth = True) -> Ranked:
            """All elements along a dimension in order, and their positions: the first of equal ones first."""

        def take_along_dim(self, indices: Tensor, dim: Whole) -> Tensor:
            """As ``gather`` with its arguments in another order."""

        def tan(self) -> Tensor:
            """Tangent of every element, in radians."""

        def tile(self, *dims: Whole | Shape) -> Tensor:
            """x so many times along each of the last dimensions: a copy."""

        def trace(self) -> Tensor:
            """The sum of a matrix's diagonal."""

        def trunc(self) -> Tensor:
            """Every element without its fraction; the gradient is 0."""

        def unbind(self, dim: Whole = 0) -> tuple[Tensor, ...]:
            """Views of the parts along one dimension, without it."""

        def unflatten(self, dim: Whole, sizes: Shape) -> Tensor:
            """One dimension as several, of which one may be -1."""
