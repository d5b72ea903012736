"""PyTorch's ``device``, ``dtype``, ``autocast`` and ``compile``; in minidl the runtime decides these."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from minidl.errors import UserError
from minidl.meta import DType

dtype = DType


class device:  # noqa: N801 - PyTorch's name
    """The name of a device, such as "cuda:0". It has no effect: tensors are on the device of their runtime."""

    def __init__(self, type: object, index: int | None = None) -> None:
        name, _, number = str(getattr(type, "type", type)).partition(":")
        self.type = name
        self.index = int(number) if number else index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r})" if self.index is None else f"device({self.type!r}, {self.index})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def autocast(device_type: str = "cpu", dtype: object = None, enabled: bool = True, **_: object) -> nullcontext[None]:
    """Return a context that does nothing. Raises UserError if it is ``enabled``: the runtime sets the precision."""
    if enabled:
        raise UserError("autocast: mixed precision is the runtime's, Runtime(precision='bf16')")
    return nullcontext()


def compile(model: Any = None, **_: object) -> Any:
    """Return the function or module unchanged; without one, return a decorator that does so."""
    if model is None:
        decorator: Callable[[Any], Any] = lambda function: function  # noqa: E731
        return decorator
    return model
