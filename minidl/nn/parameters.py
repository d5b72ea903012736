"""Functions that return persistent leaves with the values of given tensors: parameters and buffers."""

from minidl.autograd import no_grad
from minidl.ops.update import copy_
from minidl.runtime import parameter
from minidl.tensor import Tensor


def kept(x: Tensor, requires_grad: bool = False) -> Tensor:
    """Return a persistent leaf with a copy of x's value, such as a parameter (``requires_grad``) or a buffer."""
    made = parameter(x.shape, dtype=x.dtype, requires_grad=False)
    with no_grad():
        copy_(made, x)
    made.requires_grad = requires_grad
    return made


def is_plain(x: Tensor) -> bool:
    """Return True if a tensor assigned to a module is a plain attribute, not a parameter.
    Plain are results of operations, and leaves that neither persist nor require a gradient."""
    return bool(x.operation_name) or not x.storage.base.persistent and not x.requires_grad


def Parameter(data: Tensor, requires_grad: bool = True) -> Tensor:  # noqa: N802 - PyTorch's name
    """Return a parameter with a copy of a tensor's value; ``parameter(shape)`` makes one without values."""
    return kept(data, requires_grad)
