"""Operations with a gradient that the user defines, as ``class Square(Function)`` with forward() and backward().
``with_gradients`` is for gradients that are known with the value.

forward() runs with gradients disabled, and its result is returned as a view whose gradient is backward(). Both consist
of calls of operations, so they can be replayed like other calls.
"""

from __future__ import annotations

from typing import Any

from minidl.dispatch import apply, donate
from minidl.errors import ShapeError, UserError, WrongKind
from minidl.meta import Meta
from minidl.op import Op
from minidl.ops.choose import convert
from minidl.ops.elementwise import mul, sum_to
from minidl.ops.grad_modes import no_grad
from minidl.ops.shape import cast
from minidl.tensor import Gradients, Needs, Tensor


class Context:
    """The object ``ctx`` that passes values from forward() to backward().
    Tensors are kept by ``save_for_backward``, other values as attributes. ``needs_input_grad``: for each argument of
    forward(), True if it is a tensor that requires a gradient."""

    saved_tensors: tuple[Tensor, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for backward(), as ``saved_tensors``."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Tensor) -> None:
        """Do nothing: forward() has only one result, and gradients flow through that."""


# The function, its context, and the description of each argument of forward(), None for one that is no tensor.
CallOf = tuple["type[Function]", Context, tuple[Meta | None, ...]]


def _infer(y: Meta, *xs: Meta, call: CallOf) -> Meta:
    return y


def _vjp(needs: Needs, dy: Tensor, *, call: CallOf) -> Gradients:
    function, context, arguments = call
    with no_grad():
        made = function.backward(context, dy)
    given = made if isinstance(made, tuple) else (made,)
    what = f"{function.__name__}.backward()"
    if len(given) != len(arguments):
        raise UserError(f"{what} returned {len(given)} gradients for {len(arguments)} arguments of forward()")
    with no_grad():
        return (None, *(_fitting(what, g, a) for g, a in zip(given, arguments, strict=True) if a is not None))


def _fitting(what: str, gradient: Any, argument: Meta) -> Tensor | None:
    """Return a gradient in its argument's dtype, summed over the dimensions to which the argument was broadcast."""
    if gradient is None:
        return None
    if not isinstance(gradient, Tensor):
        raise WrongKind(f"{what} returns tensors and None, not a {type(gradient).__name__}")
    shape = gradient.shape
    if shape != argument.shape:
        lead = len(shape) - len(argument.shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(argument.shape, shape[lead:], strict=True)):
            raise ShapeError(f"{what} returned a gradient {list(shape)} for an argument {list(argument.shape)}")
        gradient = sum_to(gradient, argument.shape)
    return convert(gradient, argument.dtype)


CUSTOM = Op("custom", _infer, view=True, exact=True, volatile=("call",), vjp=_vjp)


class Function:
    """The base class of custom operations. ``apply(*args)`` runs the static method ``forward(ctx, *args)``.
    This returns one tensor; ``backward(ctx, gradient)`` returns the gradient of each argument, or None."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **options: Any) -> Any:
        """Return the result, one tensor; subclasses define it. args: those of ``apply``, tensors or other values.
        ``apply`` takes no keywords, so ``options`` is empty."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Return the gradients of forward()'s arguments; subclasses define it."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Tensor:
        """Return forward()'s result, with backward() as its gradient. Raises WrongKind unless it is one tensor."""
        context = Context()
        described = tuple(a.meta if isinstance(a, Tensor) else None for a in args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        context.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        with no_grad():
            y = cls.forward(context, *args)
            if not isinstance(y, Tensor):
                raise WrongKind(f"{cls.__name__}.forward() returns one tensor, not a {type(y).__name__}")
            y = y.detach()
        return apply(CUSTOM, y, *tensors, call=(cls, context, described))


def _known_infer(y: Meta, a: Meta, da: Meta, b: Meta | None = None, db: Meta | None = None) -> Meta:
    return y


def _known_vjp(needs: Needs, dy: Tensor, da: Tensor, db: Tensor | None) -> Gradients:
    def scaled(known: Tensor) -> Tensor:
        dtype = known.dtype
        return cast(mul(donate(cast(donate(known), dy.dtype)), dy), dtype)  # in dy's precision
    gradients: list[Tensor | None] = [None]
    for known, need in zip((da, db), needs[1::2], strict=False):
        gradients += [scaled(known) if known is not None and need else None, None]
    return tuple(gradients[:len(needs)])


# A view of the scalar y, whose gradients to a and b are dy times the known tensors da and db.
KNOWN_GRADIENTS = Op("known_gradients", _known_infer, view=True, vjp=_known_vjp)


def with_gradients(y: Tensor, *pairs: tuple[Tensor, Tensor]) -> Tensor:
    """Return a view of a scalar y that was computed without a graph, with known gradients.

    pairs: one or two (x, dx): backward() gives x the gradient dx times that of y. dx has the shape and dtype of x. Like
    the operands of any operation the gradients are kept until then, and may be evicted.
    """
    return apply(KNOWN_GRADIENTS, y, *(t for pair in pairs for t in pair))
