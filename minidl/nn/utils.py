"""The functions of PyTorch's ``nn.utils`` that training loops use."""

from collections.abc import Iterable

from minidl.autograd import no_grad
from minidl.errors import UserError
from minidl.ops.update import full
from minidl.optim.clip import clip_global_norm
from minidl.tensor import Tensor


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients by one factor so that their global norm is at most ``max_norm``; return their norm before.

    The norm is a tensor without dimensions; the host does not wait for it; without gradients it is 0. Raises
    UserError for a ``max_norm`` that is not positive, gradients of several dtypes, and a norm other than the 2-norm.
    """
    if norm_type != 2.0:
        raise UserError(f"clip_grad_norm_ supports only norm_type 2, not {norm_type}")
    norm = clip_global_norm([parameters] if isinstance(parameters, Tensor) else parameters, max_norm)
    return full((), 0.0) if norm is None else norm


def clip_grad_value_(parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value], in place."""
    with no_grad():
        for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
            if parameter.grad is not None:
                parameter.grad.clamp_(-clip_value, clip_value)
