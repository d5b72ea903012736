"""PyTorch's ``nn.utils``, as far as training loops use it."""

from collections.abc import Iterable

from minidl.autograd import no_grad
from minidl.errors import UserError
from minidl.ops.update import full
from minidl.optim.clip import clip_global_norm
from minidl.tensor import Tensor


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale the gradients down, together, so that their norm is at most ``max_norm``.

    Returns the norm that they had, a tensor without dimensions: nothing is read by the host. Raises UserError, for a
    norm other than the second, too.
    """
    if norm_type != 2.0:
        raise UserError(f"clip_grad_norm_ knows the second norm alone, not {norm_type}")
    norm = clip_global_norm([parameters] if isinstance(parameters, Tensor) else parameters, max_norm)
    return full((), 0.0) if norm is None else norm


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
    """Keep every element of every gradient between -clip_value and clip_value."""
    with no_grad():
        for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
            if parameter.grad is not None:
                parameter.grad.clamp_(-clip_value, clip_value)
