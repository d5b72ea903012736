"""``torch.Tensor``, which in PyTorch is a constructor, too; minidl's Tensor is made of a storage, on each call."""

from typing import Any

from minidl.errors import WrongKind
from minidl.ops.more_creation import FloatTensor
from minidl.tensor import Tensor as Plain


class _TensorType(type):
    """The type of ``Tensor``: it stands for minidl's class in ``isinstance``, in comparisons, and for new methods."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Plain)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, Plain)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is Plain

    def __hash__(cls) -> int:
        return hash(Plain)

    def __setattr__(cls, name: str, value: object) -> None:
        setattr(Plain, name, value)


class Tensor(Plain, metaclass=_TensorType):
    """``Tensor(values)`` returns a tensor of float32, ``Tensor(2, 3)`` zeros of these sizes (see ``FloatTensor``).
    A class of a program cannot be made from it: operations return minidl's tensors."""

    __slots__ = ()

    def __new__(cls, *data: Any) -> Any:
        return FloatTensor(*data)

    def __init__(self, *data: Any) -> None:
        """Do nothing: type checkers read the arguments here."""

    def __init_subclass__(cls) -> None:
        raise WrongKind(f"{cls.__name__}: torch.Tensor has no subclasses; write functions of tensors")
