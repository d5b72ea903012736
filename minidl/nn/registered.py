"""Registration of a module's attributes: parameters, buffers, child modules, or plain attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minidl.autograd import no_grad
from minidl.errors import UserError, WrongKind
from minidl.nn.parameters import is_plain, kept
from minidl.tensor import Tensor


class Registered:
    """The part of Module that registers assigned tensors and modules, by the rules that ``Module`` describes."""

    _buffer_names: frozenset[str] = frozenset()
    _unsaved_names: frozenset[str] = frozenset()
    _empty_names: frozenset[str] = frozenset()
    _plain_names: frozenset[str] = frozenset()  # tensors that are neither parameters nor buffers

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            if name in self._buffer_names:
                value = self._as_buffer(name, value)
            elif is_plain(value) != (name in self._plain_names):
                self._plain_names = self._plain_names ^ {name}
        object.__setattr__(self, name, value)

    def _as_buffer(self, name: str, value: Tensor) -> Tensor:
        """Return a buffer's tensor after an assignment: ``value`` if a leaf, else the old tensor with value's copy."""
        held = vars(self).get(name)
        if not value.operation_name:
            return value
        if held is None or held.shape != value.shape or held.dtype is not value.dtype:
            return kept(value)
        with no_grad():
            held.copy_(value)
        return held  # type: ignore[no-any-return]

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor as buffer ``name``; a result of an operation is copied; None reserves the name.

        persistent: True if the buffer is part of ``state_dict``. Raises UserError if another attribute has the name;
        WrongKind for objects other than tensors and None.
        """
        if hasattr(self, name) and name not in self._buffer_names:
            raise UserError(f"{type(self).__name__}.{name} exists already, and a buffer would hide it")
        if not isinstance(tensor, Tensor | None):
            raise WrongKind(f"{type(self).__name__}.{name}: a buffer must be a tensor or None, not {tensor!r:.60}")
        self._buffer_names = self._buffer_names | {name}
        if not persistent:
            self._unsaved_names = self._unsaved_names | {name}
        setattr(self, name, tensor)

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """Set attribute ``name`` to a parameter, or to None for a missing parameter."""
        setattr(self, name, param)

    def add_module(self, name: str, module: Registered | None) -> None:
        """Register a child module under any name; None registers an empty position. Raises WrongKind for other
        objects."""
        self.check_module(name, module)
        if module is None:
            self._empty_names = self._empty_names | {name}
        setattr(self, name, module)

    def check_module(self, name: str, module: object) -> None:
        """Raise WrongKind for objects other than modules and None."""
        if not isinstance(module, Registered | None):
            kind = f"{type(module).__module__}.{type(module).__qualname__}".removeprefix("builtins.")
            raise WrongKind(f"{type(self).__name__}: {name!r} is a {kind}, not a minidl.nn.Module; a subclass "
                            "of minidl.nn.Module with a forward() may call it")

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Return (name, module) of the children, including empty positions (None)."""
        return ((name, value) for name, value in vars(self).items()
                if isinstance(value, Registered) or value is None and name in self._empty_names)
