"""Finds the modules and optimizers that a PyTorch program uses, by global hooks, and the memory of each layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

OUTSIDE, BACKWARD = "(outside of modules)", "(backward)"


@dataclass(frozen=True)
class Layer:
    """The bytes of one module without its submodules: parameters, their gradients and optimizer states, activations.
    Activations are the module's results that are in memory at the peak of the step."""

    path: str
    parameters: int
    gradients: int
    states: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of the four numbers, in bytes."""
        return self.parameters + self.gradients + self.states + self.activations


class Seen:
    """Collects the modules and optimizers that a program uses. running: modules in a forward pass, innermost last."""

    def __init__(self) -> None:
        self.modules: dict[int, Any] = {}
        self.optimizers: dict[int, Any] = {}
        self.autocasts: set[torch.dtype] = set()
        self.running: list[Any] = []
        self._roots: dict[int, Any] = {}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Return a context in which modules that run and optimizers that step are collected."""
        def begins(module: Any, inputs: Any) -> None:
            if not self.running:
                self._roots.setdefault(id(module), module)
            self.modules.setdefault(id(module), module)
            self.running.append(module)

        def ends(module: Any, inputs: Any, output: Any) -> None:
            if self.running:
                self.running.pop()

        def steps(optimizer: Any, *_: Any) -> None:
            self.optimizers.setdefault(id(optimizer), optimizer)

        handles = [hooks.register_module_forward_pre_hook(begins),
                   hooks.register_module_forward_hook(ends, always_call=True),
                   register_optimizer_step_post_hook(steps)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def paths(self) -> dict[int, str]:
        """Return ``id(module)`` -> the module's dotted path, such as ``layer1.0.conv1``."""
        several = len(self._roots) > 1
        return {id(module): ".".join(filter(None, (type(root).__name__ if several or not name else "", name)))
                for root in self._roots.values() for name, module in root.named_modules()}

    def checkpoint(self, paths: Collection[str]) -> None:
        """Let the modules with these paths keep only their inputs for the backward pass (``torch.utils.checkpoint``).
        """
        named = self.paths()
        for module in [each for root in self._roots.values() for each in root.modules()]:
            if named[id(module)] in paths:
                module.forward = partial(checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False,
                                         determinism_check="none")

    def parameters(self) -> dict[int, tuple[str, Any]]:
        """Return ``id(parameter)`` -> (path of its module, the parameter); the path is OUTSIDE without a module."""
        paths = self.paths()
        found: dict[int, tuple[str, Any]] = {}
        for root in self._roots.values():
            for module in root.modules():
                for tensor in module._parameters.values():
                    if tensor is not None:
                        found.setdefault(id(tensor), (paths[id(module)], tensor))
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                for tensor in group["params"]:
                    found.setdefault(id(tensor), (OUTSIDE, tensor))
        return found

    def lasting(self) -> list[Any]:
        """Return the tensors that outlive a step: parameters, buffers, and the optimizers' states."""
        buffers = [b for root in self._roots.values() for b in root.buffers()]
        return [*(tensor for _, tensor in self.parameters().values()), *buffers, *(t for _, t in self._states())]

    def named(self) -> list[tuple[str, Any, bool]]:
        """Return (name, tensor, True if it is a state) of parameters, buffers, and states: ``exp_avg of fc.weight``."""
        several = len(self._roots) > 1
        found = [(f"{type(root).__name__}.{name}" if several else name, tensor, False) for root in self._roots.values()
                 for name, tensor in (*root.named_parameters(), *root.named_buffers())]
        names = {id(tensor): name for name, tensor, _ in found}
        return [*found, *((f"{what} of {names[id(parameter)]}", value, True) for optimizer in self.optimizers.values()
                          for parameter, state in optimizer.state.items() for what, value in state.items()
                          if id(parameter) in names and isinstance(value, torch.Tensor))]

    def _states(self) -> list[tuple[Any, Any]]:
        """Return pairs: a parameter, and a tensor of an optimizer's state for it."""
        return [(parameter, value) for optimizer in self.optimizers.values()
                for parameter, state in optimizer.state.items() for value in state.values()
                if isinstance(value, torch.Tensor)]

    def layers(self, activations: dict[str, int]) -> list[Layer]:
        """Return the layers that have bytes, in the network's order.
        activations: path of a module -> bytes of its results."""
        found: dict[str, list[int]] = {path: [0, 0, 0, 0] for path in self.paths().values()}
        for path, tensor in self.parameters().values():
            row = found.setdefault(path, [0, 0, 0, 0])
            row[0] += tensor.nbytes
            row[1] += tensor.nbytes if tensor.requires_grad else 0
        known = self.parameters()
        for parameter, state in self._states():
            found[known[id(parameter)][0]][2] += state.nbytes
        for path, nbytes in activations.items():
            found.setdefault(path, [0, 0, 0, 0])[3] += nbytes
        return [layer for path, row in found.items() if (layer := Layer(path, *row)).total]

    def precision(self) -> str:
        """Return the dtypes of the parameters, and of autocast if the program uses it, as text."""
        types = sorted({str(t.dtype).removeprefix("torch.") for _, t in self.parameters().values()})
        casts = sorted(str(dtype).removeprefix("torch.") for dtype in self.autocasts)
        return " and ".join(types) + " parameters" + (f", autocast to {' and '.join(casts)}" if casts else "")

    def optimizer(self) -> str:
        """Return the class names of the optimizers as text, and what was assumed of them; or ``no optimizer``."""
        names = [type(each).__name__ + (f" ({each.assumed})" if hasattr(each, "assumed") else "")
                 for each in self.optimizers.values()]
        return " and ".join(dict.fromkeys(names)) or "no optimizer"
