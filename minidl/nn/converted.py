"""Parameters and buffers of a module in another dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from minidl.autograd import no_grad
from minidl.dispatch import exchange
from minidl.errors import UserError
from minidl.meta import bfloat16, float32, float64
from minidl.nn.parameters import kept
from minidl.ops.choose import convert
from minidl.ops.methods import asked_dtype
from minidl.tensor import Tensor


class Converted:
    """Base of Module: ``to`` and its like."""

    if TYPE_CHECKING:
        def _named_tensors(self, *, parameters: bool, buffers: bool) -> Iterator[tuple[str, Tensor]]: ...

    def to(self, *targets: Any, **options: Any) -> Self:
        """This module, whose floating parameters and buffers are converted to the dtype that is asked for, if one is.

        They live on their runtime's device. An optimizer is made after this, as its state has the parameters' dtype;
        mixed precision is the runtime's (``Runtime(precision=...)``). Raises UserError for any other argument.
        """
        dtype = asked_dtype(f"{type(self).__name__}.to()", targets, options)
        if dtype is not None:
            if not dtype.floating:
                raise UserError(f"a module's parameters are floating-point numbers, not {dtype.name}")
            seen: set[int] = set()
            for _, tensor in self._named_tensors(parameters=True, buffers=True):
                if tensor.dtype.floating and tensor.dtype is not dtype and id(tensor) not in seen:
                    seen.add(id(tensor))
                    with no_grad():
                        exchange(tensor, kept(convert(tensor, dtype), tensor.requires_grad))
        return self

    def double(self) -> Self:
        """As ``to(float64)``; ``float`` and ``bfloat16`` are its like."""
        return self.to(float64)

    def float(self) -> Self:
        """As ``to(float32)``."""
        return self.to(float32)

    def bfloat16(self) -> Self:
        """As ``to(bfloat16)``."""
        return self.to(bfloat16)

    def cuda(self, *_: object) -> Self:
        """This module itself: its tensors live on their runtime's device."""
        return self

    cpu = cuda
