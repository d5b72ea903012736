"""Conversion of a module's parameters and buffers to another dtype."""

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
    """The part of Module that converts: ``to``, and the methods named after dtypes and devices."""

    if TYPE_CHECKING:
        def _named_tensors(self, *, parameters: bool, buffers: bool) -> Iterator[tuple[str, Tensor]]: ...

    def to(self, *targets: Any, **options: Any) -> Self:
        """Convert floating parameters and buffers to a dtype, if one is given; return this module.

        A device has no effect, because tensors live on their runtime's device. Create optimizers after this call, since
        their state has the parameters' dtype. For mixed precision use ``Runtime(precision=...)``. Raises UserError for
        other arguments.
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
        """Convert floating parameters and buffers to float64; return this module."""
        return self.to(float64)

    def float(self) -> Self:
        """Convert floating parameters and buffers to float32; return this module."""
        return self.to(float32)

    def bfloat16(self) -> Self:
        """Convert floating parameters and buffers to bfloat16; return this module."""
        return self.to(bfloat16)

    def cuda(self, *_: object) -> Self:
        """Return this module unchanged: its tensors live on their runtime's device."""
        return self

    cpu = cuda
