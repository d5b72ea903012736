"""A module's tensors: registers them, converts them to another dtype, and loads saved arrays into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from minidl.autograd import no_grad
from minidl.context import current
from minidl.dispatch import exchange
from minidl.errors import UserError, WrongKind
from minidl.meta import bfloat16, float32, float64
from minidl.nn.parameters import is_plain, kept
from minidl.ops.choose import convert
from minidl.ops.methods import asked_dtype
from minidl.ops.update import upload_
from minidl.runtime.upload import host_array
from minidl.tensor import Tensor


class Converted:
    """The part of Module that converts: ``to``, and the methods named after dtypes and devices."""

    if TYPE_CHECKING:
        def _named_tensors(self, *, parameters: bool, buffers: bool) -> Iterator[tuple[str, Tensor]]: ...

    def to(self, *targets: Any, **options: Any) -> Self:
        """Convert floating parameters and buffers to a dtype, if one is given; return this module.

        A tensor stands for its dtype. A device, ``copy``, ``non_blocking`` and ``memory_format`` do nothing: tensors
        live on their runtime's device. Create optimizers after this call, since optimizer states have the parameters'
        dtype. For mixed precision use ``Runtime(precision=...)``. Raises UserError for a dtype that is not floating,
        and for arguments of another kind or name."""
        dtype = asked_dtype(f"{type(self).__name__}.to()", targets, options)
        if dtype is not None:
            if not dtype.floating:
                raise UserError(f"a module's parameters are floating-point numbers, not {dtype.name}")
            seen: set[int] = set()
            for _, tensor in self._named_tensors(parameters=True, buffers=True):
                if tensor.dtype.floating and tensor.dtype is not dtype and id(tensor) not in seen:
                    seen.add(id(tensor))
                    with no_grad():
                        exchange(tensor, kept(convert(tensor, dtype), tensor.requires_grad))
        return self

    def double(self) -> Self:
        """Convert floating parameters and buffers to float64; return this module."""
        return self.to(float64)

    def float(self) -> Self:
        """Convert floating parameters and buffers to float32; return this module."""
        return self.to(float32)

    def bfloat16(self) -> Self:
        """Convert floating parameters and buffers to bfloat16; return this module."""
        return self.to(bfloat16)

    def cuda(self, *_: object) -> Self:
        """Return this module unchanged: its tensors live on their runtime's device."""
        return self

    cpu = cuda


NOT_KEPT = "num_batches_tracked"  # PyTorch's count of batches, which only its cumulative averages need
SHOWN_NAMES = 3  # the most names that an error lists for each kind of mismatch


def load(owner: str, targets: Mapping[str, Tensor], arrays: Mapping[str, Any], *,
         strict: bool) -> tuple[list[str], list[str]]:
    """Overwrite tensors with the arrays of their names; return (names without an array, names without a tensor).
    Raises UserError, naming ``owner``, and writes nothing if shapes differ or, if ``strict``, names do."""
    arrays = {name: array for name, array in arrays.items() if not name.endswith(NOT_KEPT)}
    missing = [name for name in targets if name not in arrays]
    unexpected = [name for name in arrays if name not in targets]
    values = {name: _values(arrays[name]) for name in targets if name in arrays}
    misfits = [f"{name} is {list(value.shape)} and must be {list(targets[name].shape)}"
               for name, value in values.items() if value.shape != targets[name].shape]
    complaints = [_listing("wrong shape", misfits)]
    if strict:
        complaints += [_listing("missing", missing), _listing("unexpected", unexpected)]
    if any(complaints):
        raise UserError(f"the state does not fit {owner}: " + "; ".join(filter(None, complaints)))
    # Copy each array: the upload runs later, in stream order, and the caller may change the array before that.
    copies = {name: np.array(value, targets[name].dtype.name, order="C") for name, value in values.items()}
    for name, value in copies.items():
        upload_(targets[name], value)
    return missing, unexpected


def _values(array: Any) -> np.ndarray:
    """Return an array of any library, or a PyTorch parameter, as a NumPy array."""
    return array.numpy() if isinstance(array, Tensor) else host_array(array, current().device)


def _listing(what: str, names: list[str]) -> str:
    """Return text such as ``3 missing: a, b, c``, with the first names only; an empty string for no names."""
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    return f"{len(names)} {what}: {shown}" if names else ""


class Registered:
    """The part of Module that registers assigned tensors and modules, by the rules that ``Module`` describes."""

    _buffer_names: frozenset[str] = frozenset()
    _unsaved_names: frozenset[str] = frozenset()
    _empty_names: frozenset[str] = frozenset()
    _plain_names: frozenset[str] = frozenset()  # tensors that are neither parameters nor buffers

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and self._loses_parameter(name, value):
            raise WrongKind(f"{type(self).__name__}.{name} is a parameter, and a {type(value).__name__} that is none "
                            "would replace it: use nn.Parameter(tensor), or None")
        if isinstance(value, Tensor):
            if name in self._buffer_names:
                value = self._as_buffer(name, value)
            elif is_plain(value) != (name in self._plain_names):
                self._plain_names = self._plain_names ^ {name}
        object.__setattr__(self, name, value)

    def _loses_parameter(self, name: str, value: Any) -> bool:
        """Return True if attribute ``name`` is a parameter, and ``value`` neither another one, None nor a module."""
        held = self.__dict__[name]
        if not isinstance(held, Tensor) or name in self._buffer_names or name in self._plain_names:
            return False
        fits = not is_plain(value) if isinstance(value, Tensor) else isinstance(value, Registered | None)
        return bool(held.storage.base.persistent) and not fits

    def _as_buffer(self, name: str, value: Tensor) -> Tensor:
        """Return a buffer's tensor after an assignment: ``value`` if a leaf, else a copy, in the old tensor if it fits.
        """
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
        """Set attribute ``name`` to a parameter, or to None for a missing parameter.
        Raises WrongKind for other objects, also for a tensor that is no parameter."""
        if param is not None and (not isinstance(param, Tensor) or is_plain(param)):
            raise WrongKind(f"{type(self).__name__}.{name}: nn.Parameter(tensor) makes a parameter, and a "
                            f"{type(param).__name__} without it is none")
        setattr(self, name, param)

    def add_module(self, name: str, module: Registered | None) -> None:
        """Register a child module under any name; None registers an empty position.
        Raises WrongKind for other objects."""
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
