"""Declarations of a tensor's in-place operators and methods; ``minidl.surface`` declares the rest.
Nothing here runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidl.tensor import Tensor


class Writes:
    """A base of Tensor that declares operators and methods that write in place and return the tensor.

    A leaf that requires a gradient may be written only under ``no_grad()``, but ``copy_``, ``fill_`` and ``zero_`` may
    also overwrite it elsewhere. If a gradient flows through the result, the tensor is rebound to it, and no other
    tensor may share its bytes. ``minidl.ops.inplace`` has the details.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        def __iadd__(self, other: Tensor | float) -> Tensor: ...
        def __isub__(self, other: Tensor | float) -> Tensor: ...
        def __imul__(self, other: Tensor | float) -> Tensor: ...
        def __itruediv__(self, other: Tensor | float) -> Tensor: ...
        def __ipow__(self, exponent: float) -> Tensor: ...
        def __iand__(self, other: Tensor) -> Tensor: ...
        def __ior__(self, other: Tensor) -> Tensor: ...

        def add_(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
            """Add ``alpha`` times a tensor that broadcasts to this one, or a number."""

        def sub_(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
            """Subtract ``alpha`` times a tensor that broadcasts to this one, or a number."""

        def mul_(self, other: Tensor | float) -> Tensor:
            """Multiply by a tensor that broadcasts to this one, or a number."""

        def div_(self, other: Tensor | float) -> Tensor:
            """Divide by a tensor that broadcasts to this one, or a number."""

        def pow_(self, exponent: float) -> Tensor:
            """Raise every element to a power."""

        def copy_(self, other: Tensor) -> Tensor:
            """Overwrite this tensor with one that broadcasts to it, converted to its dtype."""

        def fill_(self, value: Tensor | float) -> Tensor:
            """Overwrite every element with one value."""

        def zero_(self) -> Tensor:
            """Overwrite every element with 0."""

        def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
            """Write ``value`` where the mask is true."""

        def clamp_(self, min: float | None = None, max: float | None = None) -> Tensor:
            """Limit every element to the range from ``min`` to ``max``."""

        def neg_(self) -> Tensor:
            """Negate every element.
            ``exp_``, ``log_``, ``sqrt_``, ``relu_``, ``tanh_``, ``sigmoid_`` and ``abs_`` apply their functions."""

        exp_ = log_ = sqrt_ = relu_ = tanh_ = sigmoid_ = abs_ = neg_
