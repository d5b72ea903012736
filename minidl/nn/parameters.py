"""Functions that return persistent leaves with the values of given tensors: parameters and buffers."""

from typing import Any

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


class _Parameters(type):
    """The type of ``Parameter``: a parameter is a tensor, so that what it is follows from the tensor."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Tensor) and x.requires_grad and not is_plain(x) and x.storage.base.persistent


class Parameter(Tensor, metaclass=_Parameters):
    """``Parameter(x)`` returns a parameter with a copy of a tensor's value; ``parameter(shape)`` makes one without.
    ``isinstance(x, Parameter)`` is true for parameters that require a gradient, not for frozen ones and buffers."""

    __slots__ = ()

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Any:
        return kept(data, requires_grad)  # a Tensor, to which Python does not apply the constructor below

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        """Do nothing: type checkers read the arguments here."""
