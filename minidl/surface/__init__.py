"""What can be done with a tensor, declared: operators and methods that other modules attach when they are imported.

Nothing here runs. Names and arguments are PyTorch's; a method is the function of its name in ``minidl.ops``, which says
more.
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

# The names of Python's types are those of methods below.
Real = float
Whole = int
Truth = bool


class Ranked(NamedTuple):
    """Elements, and their positions along the dimension that they were chosen from."""

    values: Tensor
    indices: Tensor


class Surface(Named, Writes):
    """Base of Tensor, with neither state nor code."""

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
            """Sum over ``dim``, all by default."""

        def mean(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """Mean over ``dim``, all by default."""

        def var(self, dim: Whole | Shape | Truth | None = None, unbiased: Truth | None = None, keepdim: Truth = False,
                *, correction: Real | None = None) -> Tensor:
            """Variance over ``dim``, all by default."""

        def std(self, dim: Whole | Shape | Truth | None = None, unbiased: Truth | None = None, keepdim: Truth = False,
                *, correction: Real | None = None) -> Tensor:
            """Standard deviation over ``dim``, all by default."""

        def max(self, dim: Whole | Tensor | None = None, keepdim: Truth = False) -> Any:
            """The largest element; with ``dim`` the largest along it and their positions (values, indices)."""

        def min(self, dim: Whole | Tensor | None = None, keepdim: Truth = False) -> Any:
            """The smallest element, as ``max``."""

        def amax(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """The largest element over ``dim``, all by default."""

        def amin(self, dim: Whole | Shape | None = None, keepdim: Truth = False) -> Tensor:
            """The smallest element over ``dim``, all by default."""

        def argmax(self, dim: Whole | None = None, keepdim: Truth = False) -> Tensor:
            """Position of the largest element along ``dim``."""

        def argmin(self, dim: Whole | None = None, keepdim: Truth = False) -> Tensor:
            """Position of the smallest element along ``dim``."""

        def topk(self, k: Whole, dim: Whole = -1, largest: Truth = True) -> Ranked:
            """The k largest elements along ``dim``, in order, and their positions."""

        def gather(self, dim: Whole, index: Tensor) -> Tensor:
            """Of each row along ``dim`` the elements at the positions in ``index``."""

        def exp(self) -> Tensor:
            """e to the power of every element."""

        def log(self) -> Tensor:
            """Natural logarithm of every element."""

        def sqrt(self) -> Tensor:
            """Square root of every element."""

        def pow(self, value: Tensor | Real) -> Tensor:
            """Every element to a power."""

        def square(self) -> Tensor:
            """Every element times itself."""

        def abs(self) -> Tensor:
            """Every element without its sign."""

        def clamp(self, min: Tensor | Real | None = None, max: Tensor | Real | None = None) -> Tensor:
            """Every element, kept between two bounds."""

        def relu(self) -> Tensor:
            """max(x, 0) for every element."""

        def tanh(self) -> Tensor:
            """Hyperbolic tangent of every element."""

        def sigmoid(self) -> Tensor:
            """1 / (1 + exp(-x)) for every element."""

        def softmax(self, dim: Whole = -1) -> Tensor:
            """exp(x) / sum(exp(x)) over one dimension."""

        def log_softmax(self, dim: Whole = -1) -> Tensor:
            """log(softmax(x)) over one dimension."""

        def masked_fill(self, mask: Tensor, value: Tensor | Real) -> Tensor:
            """This tensor, but ``value`` where the mask is true."""

        def matmul(self, other: Tensor) -> Tensor:
            """The product of matrices, as ``@``."""

        def add(self, other: Tensor | Real) -> Tensor:
            """As ``+``; ``sub``, ``mul`` and ``div`` are its like."""

        sub = mul = div = add

        def eq(self, other: Tensor | Real) -> Tensor:
            """As ``==``: booleans; ``ne``, ``lt``, ``le``, ``gt`` and ``ge`` are its like."""

        ne = lt = le = gt = ge = eq

        def reshape(self, *sizes: Whole | Shape) -> Tensor:
            """A view of another shape, of a copy in C order where one is needed; one dimension may be -1."""

        def view(self, *sizes: Whole | Shape) -> Tensor:
            """As ``reshape``."""

        def view_as(self, other: Tensor) -> Tensor:
            """A view of another tensor's shape, as ``reshape``."""

        def permute(self, *axes: Whole | Shape) -> Tensor:
            """A view with its dimensions in the given order."""

        def transpose(self, first: Whole, second: Whole) -> Tensor:
            """A view with two dimensions exchanged."""

        def t(self) -> Tensor:
            """A matrix transposed: a view."""

        def unsqueeze(self, dim: Whole) -> Tensor:
            """A view with a dimension of extent 1 more, at place ``dim``."""

        def squeeze(self, dim: Whole | Shape | None = None) -> Tensor:
            """A view without dimensions of extent 1."""

        def expand(self, *sizes: Whole | Shape) -> Tensor:
            """A view broadcast to another shape; -1 keeps an extent."""

        def expand_as(self, other: Tensor) -> Tensor:
            """A view broadcast to another tensor's shape."""

        def repeat(self, *counts: Whole | Shape) -> Tensor:
            """A copy, so many times along each dimension."""

        def narrow(self, dim: Whole, start: Whole, length: Whole) -> Tensor:
            """A view of ``length`` elements along one dimension, from ``start`` on."""

        def split(self, sizes: Whole | Sequence[Whole], dim: Whole = 0) -> tuple[Tensor, ...]:
            """Views of parts along one dimension."""

        def chunk(self, chunks: Whole, dim: Whole = 0) -> tuple[Tensor, ...]:
            """Views of so many parts along one dimension."""

        def flatten(self, start_dim: Whole = 0, end_dim: Whole = -1) -> Tensor:
            """The dimensions from ``start_dim`` to ``end_dim`` merged into one."""

        def contiguous(self) -> Tensor:
            """This tensor if its elements lie in C order, else a copy in which they do."""

        def clone(self) -> Tensor:
            """A copy, through which gradients flow."""

        def cast(self, dtype: DType) -> Tensor:
            """This tensor if it is of this floating dtype, else a copy rounded to it."""

        def to(self, *targets: Any, **options: Any) -> Tensor:
            """This tensor in the dtype that is asked for: to(dtype), to(device, dtype), to(tensor), also by name."""

        def type_as(self, other: Tensor) -> Tensor:
            """This tensor in another one's dtype."""

        def float(self) -> Tensor:
            """This tensor in float32."""

        def double(self) -> Tensor:
            """This tensor in float64."""

        def bfloat16(self) -> Tensor:
            """This tensor in bfloat16."""

        def half(self) -> Tensor:
            """This tensor in float16."""

        def long(self) -> Tensor:
            """This tensor in int64, cut off."""

        def int(self) -> Tensor:
            """This tensor in int32, cut off."""

        def bool(self) -> Tensor:
            """Whether elements are not zero."""

        def cuda(self, *_: Any) -> Tensor:
            """This tensor itself, where the runtime's device is a GPU; UserError elsewhere."""

        def neg(self) -> Tensor:
            """As ``-x``."""

        def cpu(self) -> Tensor:
            """This tensor itself: ``numpy()`` has its values on the host."""

        def detach(self) -> Tensor:
            """A view that gradients do not flow through."""

        def requires_grad_(self, requires_grad: Truth = True) -> Tensor:
            """Set ``requires_grad``; returns this tensor."""

        def backward(self, gradient: Tensor | None = None, *, retain_graph: Truth = False) -> None:
            """Add the gradient of this tensor to the ``grad`` of every leaf that requires it."""

        def size(self, dim: Whole | None = None) -> Any:
            """The shape, or the extent of one dimension."""

        def dim(self) -> Whole:
            """Number of dimensions."""

        def tolist(self) -> Any:
            """The values as (lists of) numbers of Python's."""

        @property
        def T(self) -> Tensor:  # noqa: N802 - PyTorch's name
            """A matrix transposed: a view."""

        @property
        def data(self) -> Tensor:
            """As ``detach()``; what is assigned is copied in, whatever requires a gradient."""

        @data.setter
        def data(self, value: Tensor) -> None: ...

        @property
        def device(self) -> str:
            """Name of the device of the current runtime, on which all its tensors live."""
