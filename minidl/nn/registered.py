"""What a module's attributes are: parameters, buffers, modules below it, or attributes like any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minidl.autograd import no_grad
from minidl.errors import UserError, WrongKind
from minidl.nn.parameters import is_plain, kept
from minidl.tensor import Tensor


class Registered:
    """Base of Module: what is assigned or registered goes where ``Module`` says."""

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
        """What a buffer is after an assignment: a result of an operation is copied into the buffer's bytes."""
        held = vars(self).get(name)
        if not value.operation_name:
            return value
        if held is None or held.shape != value.shape or held.dtype is not value.dtype:
            return kept(value)
        with no_grad():
            held.copy_(value)
        return held  # type: ignore[no-any-return]

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Keep a tensor that is no parameter, as attribute ``name``: of a result of an operation a copy; None keeps the
        name for one. It is part of the state unless it is not ``persistent``.

        Raises UserError where the name is another attribute's, a parameter's, say, WrongKind for what is no tensor.
        """
        if hasattr(self, name) and name not in self._buffer_names:
            raise UserError(f"{type(self).__name__}.{name} is there already, and a buffer would hide it")
        if not isinstance(tensor, Tensor | None):
            raise WrongKind(f"{type(self).__name__}.{name}: a buffer is a tensor or None, not {tensor!r:.60}")
        self._buffer_names = self._buffer_names | {name}
        if not persistent:
            self._unsaved_names = self._unsaved_names | {name}
        setattr(self, name, tensor)

    def register_parameter(self, name: str, param: Tensor | None) -> None:
        """As ``setattr``; None says that there is no such parameter."""
        setattr(self, name, param)

    def add_module(self, name: str, module: Registered | None) -> None:
        """Keep a module below this one, under a name that may be no identifier; None keeps the place without one.
        Raises WrongKind for anything else."""
        self.check_module(name, module)
        if module is None:
            self._empty_names = self._empty_names | {name}
        setattr(self, name, module)

    def check_module(self, name: str, module: object) -> None:
        """Raise WrongKind for what is neither a module nor None."""
        if not isinstance(module, Registered | None):
            kind = f"{type(module).__module__}.{type(module).__qualname__}".removeprefix("builtins.")
            raise WrongKind(f"{type(self).__name__}: {name!r} is a {kind}, which is no minidl.nn.Module: a subclass "
                            "of minidl.nn.Module with a forward() may call it")

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Names and modules directly below this one, with the places that ``add_module`` keeps for None."""
        return ((name, value) for name, value in vars(self).items()
                if isinstance(value, Registered) or value is None and name in self._empty_names)
