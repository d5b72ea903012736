"""Module: a tree of named parameters, buffers and submodules, with a forward().

A module should keep no tensor of a forward pass in an attribute: a tensor's memory is freed when its last handle is
deleted. Hooks are functions called before or after forward(), which see or change its inputs or output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from textwrap import indent
from typing import Any, ParamSpec, Protocol, Self, TypeVar

import numpy as np

from minidl.nn.module_tensors import Converted, Registered, load
from minidl.ops.creation import taken
from minidl.tensor import Tensor

Hook = Callable[..., Any]
_numbers = count()


class Handle:
    """The object returned when a hook is registered; its ``remove()`` removes the hook."""

    def __init__(self, module: Any, number: int) -> None:
        self._module, self._number = module, number

    def remove(self) -> None:
        """Remove the hook from its module; a second call does nothing."""
        self._module._hooks = {n: hook for n, hook in self._module._hooks.items() if n != self._number}


def hooked(module: Any, hook: Hook, *, before: bool) -> Handle:
    """Register a hook of a module, called after the module's earlier hooks; return its handle.
    before: True for a hook before forward(), False for one after it."""
    number = next(_numbers)
    module._hooks = {**module._hooks, number: (before, hook)}
    return Handle(module, number)


def run_with_hooks(module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return ``module.forward(*inputs, **options)``, with the module's hooks called around it."""
    hooks = list(module._hooks.values())
    for before, hook in hooks:
        if before and (changed := hook(module, inputs)) is not None:
            inputs = changed if isinstance(changed, tuple) else (changed,)
    output = module.forward(*inputs, **options)
    for before, hook in hooks:
        if not before and (changed := hook(module, inputs, output)) is not None:
            output = changed
    return output


Inputs = ParamSpec("Inputs")
Result_co = TypeVar("Result_co", covariant=True)


class _Forward(Protocol[Inputs, Result_co]):
    """For type checkers: calling a module takes and returns what its forward() does."""

    _hooks: dict[int, tuple[bool, Hook]]

    def forward(self, *inputs: Inputs.args, **options: Inputs.kwargs) -> Result_co: ...


class Module(Registered, Converted):
    """The base class of layers and networks.

    Assigning an attribute registers it under its name: a Module as a child; a Tensor as a parameter if it was made by
    ``parameter`` or ``nn.Parameter``, or is a leaf that requires a gradient. Other tensors, such as results of
    operations, are plain attributes, and their memory stays in use while the module has them. ``register_buffer``
    registers tensors that are saved but not trained; an operation's result assigned to a buffer's name is copied
    into the buffer, and a leaf replaces it.
    Subclasses need not call a base constructor.
    """

    training: bool = True
    _hooks: dict[int, tuple[bool, Hook]] = {}

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the module's result; calling the module calls this method. Subclasses document the shapes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self: _Forward[Inputs, Result_co], *inputs: Inputs.args, **options: Inputs.kwargs) -> Result_co:
        for x in inputs:  # no generator: this comes before every layer
            if type(x).__module__ == "torch":
                inputs = tuple(map(taken, inputs))  # type: ignore[assignment]
                break
        if self._hooks:
            return run_with_hooks(self, inputs, options)  # type: ignore[no-any-return]
        return self.forward(*inputs, **options)

    def register_forward_pre_hook(self, hook: Hook) -> Handle:
        """Call ``hook(module, inputs)`` before each forward(); a result other than None replaces the inputs.
        Return a handle whose ``remove()`` removes the hook."""
        return hooked(self, hook, before=True)

    def register_forward_hook(self, hook: Hook) -> Handle:
        """Call ``hook(module, inputs, output)`` after each forward(); a result other than None replaces the output."""
        return hooked(self, hook, before=False)

    # ---- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Return (name, module) of this module's direct children, in the order of their first assignment."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def children(self) -> Iterator[Module]:
        """Return this module's direct children, without their names."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (dotted path, module) for this module and its descendants, parents first.
        A module that has several parents comes once per path."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """Return this module and its descendants, parents first; one with several parents comes once per path."""
        return (module for _, module in self.named_modules())

    def _named_tensors(self, *, parameters: bool, buffers: bool, saved: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yield (dotted name, tensor) for the tree's parameters and buffers, each module's parameters first.
        saved: True leaves out tensors that are not part of ``state_dict``."""
        for path, module in self.named_modules():
            own = [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)
                   and name not in module._plain_names and not (saved and name in module._unsaved_names)]
            for are_buffers in (False, True):
                for name, tensor in own:
                    if (name in module._buffer_names) == are_buffers and (buffers if are_buffers else parameters):
                        yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Return (dotted name, tensor) for every parameter once, under its first name, with ``prefix`` before it.
        recurse: False returns only the parameters of this module itself."""
        start = f"{prefix}." if prefix else ""
        return ((start + name, tensor) for name, tensor in
                _first_of_each(self._named_tensors(parameters=True, buffers=False)) if recurse or "." not in name)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """Return every parameter once, in the order of ``named_parameters``."""
        return (tensor for _, tensor in self.named_parameters(recurse=recurse))

    def buffers(self) -> Iterator[Tensor]:
        """Return every buffer once, in the order of ``named_buffers``."""
        return (tensor for _, tensor in self.named_buffers())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Return (dotted name, tensor) for every buffer once, under its first name."""
        return _first_of_each(self._named_tensors(parameters=False, buffers=True))

    def apply(self, function: Callable[[Module], object]) -> Self:
        """Call a function with this module and all its descendants, children before parents; return this module."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    # ---- modes and gradients

    def train(self, mode: bool = True) -> Self:
        """Put every module of the tree in training mode (or out of it); returns this module.
        Calls the children's ``train``: a child may override it, as a frozen batch norm does."""
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        """Put every module of the tree in evaluation mode, out of training mode; returns this module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set ``requires_grad`` of every parameter; returns this module."""
        for tensor in self.parameters():
            tensor.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set every parameter's gradient to None, which frees its memory; ``set_to_none=False`` does the same."""
        for tensor in self.parameters():
            tensor.grad = None

    # ---- state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies on the host of parameters and buffers, by dotted name. Waits for the device.
        Buffers registered with ``persistent=False`` are left out."""
        return {name: tensor.numpy() for name, tensor in self._named_tensors(parameters=True, buffers=True, saved=True)}

    def load_state_dict(self, arrays: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Overwrite parameters and buffers with arrays of the same names and shapes.
        Return (names without an array, names of arrays without a tensor).

        Names that end in ``num_batches_tracked`` are ignored. Raises UserError, listing names, if shapes differ, or if
        ``strict`` and names are missing or unexpected; then nothing is written.
        """
        return load(type(self).__name__, dict(self._named_tensors(parameters=True, buffers=True, saved=True)), arrays,
                    strict=strict)

    # ---- display

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows between a layer's parentheses; subclasses override it."""
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
