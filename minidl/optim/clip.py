"""Clipping by global norm (Pascanu, Mikolov & Bengio 2013, Algorithm 1), as operations on the device.

    norm = sqrt(sum of all gradients' squares);    g = g * limit / max(norm, limit)


The factor is a tensor on the device, so the host does not wait and a step with clipping stays asynchronous.
"""

from collections.abc import Iterable

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import donate
from minidl.errors import UserError
from minidl.ops import add, div, full, mul, relu, shift, sqrt, sub, sum
from minidl.tensor import Tensor


def clip_global_norm(parameters: Iterable[Tensor], limit: float) -> Tensor | None:
    """Scale all gradients by one factor so that their global norm is at most ``limit``; return their norm before.

    The norm is a tensor without dimensions, or None without gradients. Gradients are donated to the scaled ones. Within
    the limit they keep every bit, because the factor is exactly 1. Raises UserError if the limit is not positive, or
    the gradients have several dtypes.
    """
    if isinstance(limit, Tensor) or not limit > 0:
        raise UserError(f"gradients cannot be clipped to a norm of {limit}")
    clipped = [p for p in parameters if p.grad is not None]
    if not clipped:
        return None
    if len({p.dtype for p in clipped}) > 1:
        raise UserError("gradients of several dtypes have no common norm")
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
        # max(norm, limit) by existing operations; limit / limit is exactly 1.
        largest = shift(relu(sub(norm, full((), limit, norm.dtype))), limit)
        factor = div(full((), limit, norm.dtype), largest)
        current().make_leaf(factor.storage)  # otherwise its lineage would keep all gradients in memory
        current().make_leaf(norm.storage)
        del squares, largest
        for parameter in clipped:
            gradient = parameter.grad
            assert gradient is not None
            ours, parameter.grad = gradient.alias(), None
            del gradient  # if the program holds this handle, it keeps the old values
            scaled = mul(donate(ours), factor)
            del ours
            current().make_leaf(scaled.storage)  # like any gradient, it has no lineage that keeps other tensors
            parameter.grad = scaled
    return norm
