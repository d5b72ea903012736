"""Declarations of a tensor's operators and methods, for type checkers and editors; ``minidl.ops`` attaches the code.

Nothing here runs. Names and arguments are PyTorch's; each method calls a function in a module below ``minidl.ops``
(``backward`` one of ``minidl.autograd``), whose docstring has the details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from minidl.meta import DType, Shape
from minidl.surface.names import Named
from minidl.surface.writes import Writes

if TYPE_CHECKING:
    import numpy as np

    from minidl.tensor import Tensor

# Other names for Python's types, because methods below are called float, int and bool.
Real = float
Whole = int
Truth = bool


class Ranked(NamedTuple):
    """Selected elements (``values``), and their indices along a dimension (``indices``)."""

    values: Tensor
    indices: Tensor


class Surface(Named, Writes):
    """A base of Tensor that declares operators and methods, without state and code."""

    __slots__ = ()

    if TYPE_CHECKING:
        def __add__(self, other: Tensor | Real) -> Tensor: ...
        def __radd__(self, other: Real) -> Tensor: ...
        def __sub__(self, other: Tensor | Real) -> Tensor: ...
        def __rsub__(self, other: Real) -> Tensor: ...
        def __mul__(self, other: Tensor | Real) -> Tensor: ...
        def __rmul__(self, other: Real) -> Tensor: ...
        def __truediv__(self, other: Tensor | Real) -> Tensor: ...
        def __rtruediv__(self, other: Real) -> Tensor: ...
        def __pow__(self, value: Tensor | Real) -> Tensor: ...
        def __mod__(self, other: Tensor | Real) -> Tensor: ...
        def __floordiv__(self, other: Tensor | Real) -> Tensor: ...
        def __xor__(self, other: Tensor) -> Tensor: ...
        def __rpow__(self, base: Real) -> Tensor: ...
        def __matmul__(self, other: Tensor) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __and__(self, other: Tensor) -> Tensor: ...
        def __or__(self, other: Tensor) -> Tensor: ...
        def __eq__(self, other: Tensor | Real) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: Tensor | Real) -> Tensor: ...  # type: ignore[override]
        def __lt__(self, other: Tensor | Real) -> Tensor: ...
        def __le__(self, other: Tensor | Real) -> Tensor: ...
        def __gt__(self, other: Tensor | Real) -> Tensor: ...
        def __ge__(self, other: Tensor | Real) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...
        def __setitem__(self, key: Any, value: Tensor | Real) -> None: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __array__(self, dtype: Any = None, copy: Truth | None = None) -> np.ndarray: ...

        def sum(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return the sum over ``dim``, by default over all dimensions."""

        def mean(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return the mean over ``dim``, by default over all dimensions."""

        def var(self, dim: Whole | Shape | Truth | None = None, unbiased: Truth | None = None, keepdim: Truth = False,
                *, correction: Real | None = None) -> Tensor:
            """Return the variance over ``dim`` (default: all); it divides by count - ``correction``, by default 1."""

        def std(self, dim: Whole | Shape | Truth | None = None, unbiased: Truth | None = None, keepdim: Truth = False,
                *, correction: Real | None = None) -> Tensor:
            """Return the root of ``var``, the standard deviation, over ``dim``, by default over all dimensions."""

        def max(self, dim: Whole | Tensor | None = None, keepdim: Truth = False) -> Any:
            """Return the largest element; with ``dim``, the largest ones along it and their indices (values, indices).
            With a tensor in place of ``dim``, return the larger of each two elements."""

        def min(self, dim: Whole | Tensor | None = None, keepdim: Truth = False) -> Any:
            """Return the smallest element, with the arguments of ``max``."""

        def amax(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return the largest element over ``dim``, by default over all dimensions."""

        def amin(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Return the smallest element over ``dim``, by default over all dimensions."""

        def argmax(self, dim: Whole | None = None, keepdim: Truth = False) -> Tensor:
            """Return the index of the largest element along ``dim``; for None that in the flattened tensor."""

        def argmin(self, dim: Whole | None = None, keepdim: Truth = False) -> Tensor:
            """Return the index of the smallest element along ``dim``; for None that in the flattened tensor."""

        def topk(self, k: Whole, dim: Whole = -1, largest: Truth = True) -> Ranked:
            """Return the k largest (or smallest) elements along ``dim``, best first, and their indices."""

        def gather(self, dim: Whole, index: Tensor) -> Tensor:
            """Return the elements at the indices ``index`` along ``dim``."""

        def exp(self) -> Tensor:
            """Return exp(x), element by element."""

        def log(self) -> Tensor:
            """Return the natural logarithm of every element."""

        def sqrt(self) -> Tensor:
            """Return the square root of every element."""

        def pow(self, value: Tensor | Real) -> Tensor:
            """Return every element to a power."""

        def square(self) -> Tensor:
            """Return x * x, element by element."""

        def abs(self) -> Tensor:
            """Return the absolute value of every element."""

        def clamp(self, min: Tensor | Real | None = None, max: Tensor | Real | None = None) -> Tensor:
            """Return every element limited to the range from min to max."""

        def relu(self) -> Tensor:
            """Return max(x, 0), element by element."""

        def tanh(self) -> Tensor:
            """Return the hyperbolic tangent of every element."""

        def sigmoid(self) -> Tensor:
            """Return 1 / (1 + exp(-x)), element by element."""

        def softmax(self, dim: Whole = -1) -> Tensor:
            """Return exp(x) / sum(exp(x)) over one dimension."""

        def log_softmax(self, dim: Whole = -1) -> Tensor:
            """Return log(softmax(x)) over one dimension."""

        def masked_fill(self, mask: Tensor, value: Tensor | Real) -> Tensor:
            """Return ``value`` where the mask is true, this tensor elsewhere."""

        def matmul(self, other: Tensor) -> Tensor:
            """Return the matrix product, like ``@``."""

        def add(self, other: Tensor | Real) -> Tensor:
            """Return x + other; ``sub``, ``mul`` and ``div`` return x - other, x * other and x / other."""

        sub = mul = div = add

        def eq(self, other: Tensor | Real) -> Tensor:
            """Return booleans x == other; ``ne``, ``lt``, ``le``, ``gt`` and ``ge`` are !=, <, <=, > and >=."""

        ne = lt = le = gt = ge = eq

        def reshape(self, *sizes: Whole | Shape) -> Tensor:
            """Return a view in another shape, of a contiguous copy if needed; one size may be -1."""

        def view(self, *sizes: Whole | Shape) -> Tensor:
            """Return ``reshape(*sizes)``."""

        def view_as(self, other: Tensor) -> Tensor:
            """Return ``reshape(other.shape)``."""

        def permute(self, *axes: Whole | Shape) -> Tensor:
            """Return a view with the dimensions in the given order."""

        def transpose(self, first: Whole, second: Whole) -> Tensor:
            """Return a view with two dimensions swapped."""

        def t(self) -> Tensor:
            """Return a transposed view of a matrix."""

        def unsqueeze(self, dim: Whole) -> Tensor:
            """Return a view with a new dimension of size 1 at position ``dim``."""

        def squeeze(self, dim: Whole | Shape | None = None) -> Tensor:
            """Return a view without those of the dimensions ``dim`` (None: all) that have size 1."""

        def expand(self, *sizes: Whole | Shape) -> Tensor:
            """Return a view broadcast to another shape; -1 keeps a dimension's size."""

        def expand_as(self, other: Tensor) -> Tensor:
            """Return a view broadcast to another tensor's shape."""

        def repeat(self, *counts: Whole | Shape) -> Tensor:
            """Return a copy repeated along each dimension."""

        def narrow(self, dim: Whole, start: Whole, length: Whole) -> Tensor:
            """Return a view of ``length`` elements along one dimension, from ``start`` on."""

        def split(self, sizes: Whole | Sequence[Whole], dim: Whole = 0) -> tuple[Tensor, ...]:
            """Return views of parts along one dimension, of one size (the last may be smaller) or of given sizes."""

        def chunk(self, chunks: Whole, dim: Whole = 0) -> tuple[Tensor, ...]:
            """Return views of at most ``chunks`` parts along one dimension."""

        def flatten(self, start_dim: Whole = 0, end_dim: Whole = -1) -> Tensor:
            """Return the tensor with the dimensions from ``start_dim`` to ``end_dim`` merged into one."""

        def contiguous(self) -> Tensor:
            """Return this tensor if it is contiguous (C order), else a contiguous copy."""

        def clone(self) -> Tensor:
            """Return a copy, through which gradients flow."""

        def cast(self, dtype: DType) -> Tensor:
            """Return this tensor if it has the floating dtype, else a copy rounded to it."""

        def to(self, *targets: Any, **options: Any) -> Tensor:
            """Return this tensor in a dtype: to(dtype), to(device, dtype), to(tensor), also by keyword."""

        def type_as(self, other: Tensor) -> Tensor:
            """Return this tensor in another tensor's dtype."""

        def float(self) -> Tensor:
            """Return this tensor in float32."""

        def double(self) -> Tensor:
            """Return this tensor in float64."""

        def bfloat16(self) -> Tensor:
            """Return this tensor in bfloat16."""

        def half(self) -> Tensor:
            """Return this tensor in float16."""

        def long(self) -> Tensor:
            """Return this tensor truncated to int64."""

        def int(self) -> Tensor:
            """Return this tensor truncated to int32."""

        def bool(self) -> Tensor:
            """Return booleans that are True where elements are nonzero."""

        def cuda(self, *_: Any) -> Tensor:
            """Return this tensor if the runtime's device is a GPU. Raises UserError otherwise."""

        def neg(self) -> Tensor:
            """Return -x."""

        def cpu(self) -> Tensor:
            """Return this tensor; ``numpy()`` copies its values to the host."""

        def detach(self) -> Tensor:
            """Return a view through which no gradient flows."""

        def requires_grad_(self, requires_grad: Truth = True) -> Tensor:
            """Set ``requires_grad``; returns this tensor."""

        def backward(self, gradient: Tensor | None = None, *, retain_graph: Truth = False) -> None:
            """Add the gradient of this tensor to the ``grad`` of every leaf that requires it."""

        def size(self, dim: Whole | None = None) -> Any:
            """Return the shape, or the size of one dimension."""

        def dim(self) -> Whole:
            """Return the number of dimensions."""

        def tolist(self) -> Any:
            """Return the values as Python numbers, in nested lists."""

        @property
        def T(self) -> Tensor:  # noqa: N802 - PyTorch's name
            """A transposed view of a matrix."""

        @property
        def data(self) -> Tensor:
            """``detach()``; assigning copies values in, without a gradient."""

        @data.setter
        def data(self, value: Tensor) -> None: ...

        @property
        def device(self) -> str:
            """The name of the current runtime's device, on which all its tensors live."""
