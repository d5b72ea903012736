"""Module: a tree of named parameters, buffers and submodules, and a forward().

A module keeps no tensor of a forward pass: memory is freed when the last handle on it dies, so an attribute that held
one would keep it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import indent
from typing import Any, ParamSpec, Protocol, Self, TypeVar

import numpy as np

from minidl.nn.converted import Converted
from minidl.nn.hooks import Handle, Hook, hooked, run_with_hooks
from minidl.nn.registered import Registered
from minidl.nn.state import load
from minidl.ops.creation import taken
from minidl.tensor import Tensor

Inputs = ParamSpec("Inputs")
Result_co = TypeVar("Result_co", covariant=True)


class _Forward(Protocol[Inputs, Result_co]):
    """What calling a module takes and returns: what its forward() does."""

    _hooks: dict[int, tuple[bool, Hook]]

    def forward(self, *inputs: Inputs.args, **options: Inputs.kwargs) -> Result_co: ...


class Module(Registered, Converted):
    """Base class of everything with a forward().

    What is assigned to an attribute is registered under its name: a Module as a child, a Tensor as a parameter if
    ``parameter`` or ``nn.Parameter`` made it, or it is a leaf that requires a gradient. Any other tensor, the result of
    an operation, say, is an attribute like any other, and keeps its memory as long as the module has it. Tensors that
    are saved with the parameters but not trained go through ``register_buffer``: a result that is assigned to the name
    of one is copied into it. There is no base constructor that a subclass would have to call.
    """

    training: bool = True
    _hooks: dict[int, tuple[bool, Hook]] = {}

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The result for these inputs, which is what calling the module returns; each subclass says of what shapes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self: _Forward[Inputs, Result_co], *inputs: Inputs.args, **options: Inputs.kwargs) -> Result_co:
        if any(type(x).__module__ == "torch" for x in inputs):
            inputs = tuple(map(taken, inputs))  # type: ignore[assignment]
        if self._hooks:
            return run_with_hooks(self, inputs, options)  # type: ignore[no-any-return]
        return self.forward(*inputs, **options)

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
                   and name not in module._plain_names and not (saved and name in module._unsaved_names)]
            for are_buffers in (False, True):
                for name, tensor in own:
                    if (name in module._buffer_names) == are_buffers and (buffers if are_buffers else parameters):
                        yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, under the first of its dotted names, behind ``prefix``; of this module alone unless
        ``recurse``."""
        start = f"{prefix}." if prefix else ""
        return ((start + name, tensor) for name, tensor in
                _first_of_each(self._named_tensors(parameters=True, buffers=False)) if recurse or "." not in name)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """Every parameter once, in the order of ``named_parameters``."""
        return (tensor for _, tensor in self.named_parameters(recurse=recurse))

    def buffers(self) -> Iterator[Tensor]:
        """Every buffer once, in the order of ``named_buffers``."""
        return (tensor for _, tensor in self.named_buffers())

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
        return load(type(self).__name__, dict(self._named_tensors(parameters=True, buffers=True, saved=True)), arrays,
                    strict=strict)

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
