"""Clipping by global norm (Pascanu, Mikolov & Bengio 2013, Algorithm 1), as operations on the device.

    norm = sqrt(sum of all gradients' squares);    g = g * limit / max(norm, limit)

Nothing is read by the host: the factor is a tensor, so a step that clips is as asynchronous as one that does not.
"""

from collections.abc import Iterable

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import donate
from minidl.errors import UserError
from minidl.ops import add, div, full, mul, relu, shift, sqrt, sub, sum
from minidl.tensor import Tensor


def clip_global_norm(parameters: Iterable[Tensor], limit: float) -> Tensor | None:
    """Scale the gradients of all parameters down, together, so that their norm is at most ``limit``; returns the norm
    that they had, a tensor without dimensions, or None if there are none.

    A gradient is written over its old bytes. Within the limit they keep every bit, as the factor is exactly 1.
    Raises UserError if the limit is not above 0, or the gradients are of several types.
    """
    if isinstance(limit, Tensor) or not limit > 0:
        raise UserError(f"gradients cannot be clipped to a norm of {limit}")
    clipped = [p for p in parameters if p.grad is not None]
    if not clipped:
        return None
    if len({p.dtype for p in clipped}) > 1:
        raise UserError("gradients of several types have no common norm")
    with no_grad():
        squares: Tensor | None = None
        for parameter in clipped:
            gradient = parameter.grad
            assert gradient is not None
            square = sum(mul(gradient, gradient))
            squares = square if squares is None else add(donate(squares), donate(square))
            del gradient
        assert squares is not None
        norm = sqrt(squares)
        # max(norm, limit) without an operation of its own; limit / limit is exactly 1.
        largest = shift(relu(sub(norm, full((), limit, norm.dtype))), limit)
        factor = div(full((), limit, norm.dtype), largest)
        current().make_leaf(factor.storage)  # else its record would hold all gradients, and these their bytes
        current().make_leaf(norm.storage)
        del squares, largest
        for parameter in clipped:
            gradient = parameter.grad
            assert gradient is not None
            ours, parameter.grad = gradient.alias(), None
            del gradient  # the program may hold this handle, and goes on to see the old values
            scaled = mul(donate(ours), factor)
            del ours
            current().make_leaf(scaled.storage)  # like any gradient: it keeps its bytes, and pins nothing
            parameter.grad = scaled
    return norm
