"""Operations with a gradient that the user defines: ``class Square(Function)`` with forward() and backward().

forward() runs with gradients disabled, and its result is returned as a view whose gradient is backward(). Both consist
of calls of operations, so they can be replayed like other calls.
"""

from __future__ import annotations

from typing import Any

from minidl.dispatch import apply
from minidl.errors import UserError, WrongKind
from minidl.meta import Meta
from minidl.op import Op
from minidl.ops.grad_modes import no_grad
from minidl.tensor import Gradients, Needs, Tensor


class Context:
    """The object ``ctx`` that passes values from forward() to backward().
    Tensors are kept by ``save_for_backward``, other values as attributes."""

    saved_tensors: tuple[Tensor, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for backward(), as ``saved_tensors``."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Tensor) -> None:
        """Do nothing: forward() has only one result, and gradients flow through that."""


def _infer(y: Meta, *xs: Meta, call: tuple[type[Function], Context, tuple[bool, ...]]) -> Meta:
    return y


def _vjp(needs: Needs, dy: Tensor, *, call: tuple[type[Function], Context, tuple[bool, ...]]) -> Gradients:
    function, context, are_tensors = call
    with no_grad():
        made = function.backward(context, dy)
    given = made if isinstance(made, tuple) else (made,)
    if len(given) != len(are_tensors):
        raise UserError(f"{function.__name__}.backward() returned {len(given)} gradients for {len(are_tensors)} "
                        "arguments of forward()")
    return (None, *(g for g, is_tensor in zip(given, are_tensors, strict=True) if is_tensor))


CUSTOM = Op("custom", _infer, view=True, exact=True, volatile=("call",), vjp=_vjp)


class Function:
    """The base class of custom operations. ``apply(*args)`` runs the static method ``forward(ctx, *args)``.
    This returns one tensor; ``backward(ctx, gradient)`` returns the gradient of each argument, or None."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **options: Any) -> Any:
        """Return the result, one tensor; subclasses define it."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradients of forward()'s arguments; subclasses define it."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Tensor:
        """Return forward()'s result, with backward() as its gradient. Raises WrongKind unless it is one tensor."""
        context = Context()
        are_tensors = tuple(isinstance(a, Tensor) for a in args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        context.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        with no_grad():
            y = cls.forward(context, *args)
            if not isinstance(y, Tensor):
                raise WrongKind(f"{cls.__name__}.forward() returns one tensor, not a {type(y).__name__}")
            y = y.detach()
        return apply(CUSTOM, y, *tensors, call=(cls, context, are_tensors))
