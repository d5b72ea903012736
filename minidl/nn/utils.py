"""PyTorch's ``nn.utils``, as far as training loops use it."""

from collections.abc import Iterable

from minidl.optim.clip import clip_global_norm
from minidl.tensor import Tensor


def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> None:
    """Scale the gradients down, together, so that their norm is at most ``max_norm``. The norm is not returned: nothing
    is read by the host. Raises UserError."""
    clip_global_norm([parameters] if isinstance(parameters, Tensor) else parameters, max_norm)
