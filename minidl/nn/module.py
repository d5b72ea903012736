"""Module: a tree of named parameters, buffers and submodules, and a forward().

A module keeps no tensor of a forward pass: memory is freed when the last handle on it dies, so an attribute that held
one would keep it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import indent
from typing import Any, ParamSpec, Protocol, Self, TypeVar

import numpy as np

from minidl.autograd import no_grad
from minidl.calls import exchange
from minidl.errors import UserError, WrongKind
from minidl.meta import bfloat16, float32, float64
from minidl.nn.hooks import Handle, Hook, hooked, run_with_hooks
from minidl.nn.parameters import kept
from minidl.ops.choose import convert
from minidl.ops.methods import asked_dtype
from minidl.ops.update import upload_
from minidl.tensor import Tensor

NOT_KEPT = "num_batches_tracked"  # PyTorch's count of batches, which only its cumulative averages need
SHOWN_NAMES = 3  # how many names of each kind of mismatch an error lists

Inputs = ParamSpec("Inputs")
Result_co = TypeVar("Result_co", covariant=True)


class _Forward(Protocol[Inputs, Result_co]):
    """What calling a module takes and returns: what its forward() does."""

    _hooks: dict[int, tuple[bool, Hook]]

    def forward(self, *inputs: Inputs.args, **options: Inputs.kwargs) -> Result_co: ...


class Module:
    """Base class of everything with a forward().

    What is assigned to an attribute is registered under its name: a Module as a child, a Tensor as a parameter. Tensors
    that are saved with the parameters but not trained go through ``register_buffer``. Assigning the result of an
    operation raises UserError. There is no base constructor that a subclass would have to call.
    """

    training: bool = True
    _buffer_names: frozenset[str] = frozenset()
    _unsaved_names: frozenset[str] = frozenset()
    _empty_names: frozenset[str] = frozenset()
    _hooks: dict[int, tuple[bool, Hook]] = {}

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The result for these inputs, which is what calling the module returns; each subclass says of what shapes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self: _Forward[Inputs, Result_co], *inputs: Inputs.args, **options: Inputs.kwargs) -> Result_co:
        if self._hooks:
            return run_with_hooks(self, inputs, options)  # type: ignore[no-any-return]
        return self.forward(*inputs, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.operation_name:
            raise UserError(f"{type(self).__name__}.{name}: a module keeps parameters and buffers, not the result of "
                            f"{value.operation_name}, whose memory would never be freed")
        object.__setattr__(self, name, value)

    def register_buffer(self, name: str, tensor: Tensor, persistent: bool = True) -> None:
        """Keep a tensor that is no parameter, as attribute ``name``: of a result of an operation a copy. It is part of
        the state unless it is not ``persistent``."""
        self._buffer_names = self._buffer_names | {name}
        if not persistent:
            self._unsaved_names = self._unsaved_names | {name}
        setattr(self, name, kept(tensor) if tensor.operation_name else tensor)

    def add_module(self, name: str, module: Module | None) -> None:
        """Keep a module below this one, under a name that may be no identifier; None keeps the place without one.
        Raises WrongKind for anything else."""
        self.check_module(name, module)
        if module is None:
            self._empty_names = self._empty_names | {name}
        setattr(self, name, module)

    def check_module(self, name: str, module: object) -> None:
        """Raise WrongKind for what is neither a module nor None."""
        if not isinstance(module, Module | None):
            kind = f"{type(module).__module__}.{type(module).__qualname__}".removeprefix("builtins.")
            raise WrongKind(f"{type(self).__name__}: {name!r} is a {kind}, which is no minidl.nn.Module: a subclass "
                            "of minidl.nn.Module with a forward() may call it")

    def entries(self) -> Iterator[tuple[str, Module | None]]:
        """Names and modules directly below this one, with the places that ``add_module`` keeps for None."""
        return ((name, value) for name, value in vars(self).items()
                if isinstance(value, Module) or value is None and name in self._empty_names)

    def register_forward_pre_hook(self, hook: Hook) -> Handle:
        """Call ``hook(module, inputs)`` before forward(); what it returns, unless None, are the inputs. The handle's
        ``remove()`` ends that."""
        return hooked(self, hook, before=True)

    def register_forward_hook(self, hook: Hook) -> Handle:
        """Call ``hook(module, inputs, output)`` after forward(); what it returns, unless None, is the output."""
        return hooked(self, hook, before=False)

    # ---- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below this one, in the order of their first assignment."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def children(self) -> Iterator[Module]:
        """The modules directly below this one."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, parents first, with dotted paths; a shared module comes once a path."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, parents first."""
        return (module for _, module in self.named_modules())

    def _named_tensors(self, *, parameters: bool, buffers: bool, saved: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers of the tree (or those that are ``saved``), each module's parameters before its
        buffers."""
        for path, module in self.named_modules():
            own = [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)
                   and not (saved and name in module._unsaved_names)]
            for are_buffers in (False, True):
                for name, tensor in own:
                    if (name in module._buffer_names) == are_buffers and (buffers if are_buffers else parameters):
                        yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, under the first of its dotted names."""
        return _first_of_each(self._named_tensors(parameters=True, buffers=False))

    def parameters(self) -> Iterator[Tensor]:
        """Every parameter once, in the order of ``named_parameters``."""
        return (tensor for _, tensor in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Every buffer once, under the first of its dotted names."""
        return _first_of_each(self._named_tensors(parameters=False, buffers=True))

    def apply(self, function: Callable[[Module], object]) -> Self:
        """Call a function with every module of the tree, children first; returns this module."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    # ---- modes and gradients

    def train(self, mode: bool = True) -> Self:
        """Put every module of the tree in training mode (or out of it); returns this module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put every module of the tree in inference mode; returns this module."""
        return self.train(False)

    def to(self, *targets: Any, **options: Any) -> Self:
        """This module, whose floating parameters and buffers are converted to the dtype that is asked for, if one is.

        They live on their runtime's device. An optimizer is made after this, as its state has the parameters' dtype;
        mixed precision is the runtime's (``Runtime(precision=...)``). Raises UserError for any other argument.
        """
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
        """As ``to(float64)``; ``float`` and ``bfloat16`` are its like."""
        return self.to(float64)

    def float(self) -> Self:
        """As ``to(float32)``."""
        return self.to(float32)

    def bfloat16(self) -> Self:
        """As ``to(bfloat16)``."""
        return self.to(bfloat16)

    def cuda(self, *_: object) -> Self:
        """This module itself: its tensors live on their runtime's device."""
        return self

    cpu = cuda

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set ``requires_grad`` of every parameter; returns this module."""
        for tensor in self.parameters():
            tensor.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of every parameter, which frees their memory; there is no other way."""
        for tensor in self.parameters():
            tensor.grad = None

    # ---- state

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy on the host of every parameter and buffer, by dotted name. Waits for the device."""
        return {name: tensor.numpy() for name, tensor in self._named_tensors(parameters=True, buffers=True, saved=True)}

    def load_state_dict(self, arrays: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Overwrite parameters and buffers with arrays of the same names and shapes; nothing is written on an error.

        Returns the missing and the unexpected names, both empty when ``strict``. Names that end in
        ``num_batches_tracked`` are ignored. Raises UserError, listing names, when shapes differ, and when ``strict``
        also when names are missing or unexpected.
        """
        targets = dict(self._named_tensors(parameters=True, buffers=True, saved=True))
        arrays = {name: array for name, array in arrays.items() if not name.endswith(NOT_KEPT)}
        missing = [name for name in targets if name not in arrays]
        unexpected = [name for name in arrays if name not in targets]
        values = {name: np.asarray(arrays[name]) for name in targets if name in arrays}
        misfits = [f"{name} is {list(value.shape)} and must be {list(targets[name].shape)}"
                   for name, value in values.items() if value.shape != targets[name].shape]
        complaints = [_listing("wrong shape", misfits)]
        if strict:
            complaints += [_listing("missing", missing), _listing("unexpected", unexpected)]
        if any(complaints):
            raise UserError(f"the state does not fit {type(self).__name__}: " + "; ".join(filter(None, complaints)))
        for name, value in values.items():
            # A copy: the upload happens in stream order, perhaps after the caller has changed the array.
            upload_(targets[name], np.array(value, targets[name].dtype.name, order="C"))
        return missing, unexpected

    # ---- display

    def extra_repr(self) -> str:
        """What ``repr`` shows of a layer between its parentheses; a subclass overrides it."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}" for name, child in self.named_children()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n" + indent("\n".join(lines), "  ") + "\n)"


def _first_of_each(named: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for name, tensor in named:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _listing(what: str, names: list[str]) -> str:
    """``3 missing: a, b, c``; the first few names only; empty if there are none."""
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    return f"{len(names)} {what}: {shown}" if names else ""
