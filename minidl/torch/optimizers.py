"""The tensors of an optimizer, and the parts in which it can step.

PyTorch's own optimizers treat every parameter by itself. So a step for some of the parameters, and then for the others,
computes the same bits as one step for all. Other optimizers may not, so only those in the table step in parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as hooks

from minidl.torch.schemas import tensors_in

# By name: not every version of PyTorch has all of them.
BY_PARAMETER = ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam",
                "RMSprop", "Rprop", "SGD")
MOST_PARTS = 16

Part = list[list[torch.Tensor]]
"""For each group of an optimizer, a list of some of its parameters."""


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer, group by group."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients (``.grad``) of an optimizer's parameters, of those that have one."""
    return [p.grad for p in parameters_of(optimizer) if p.grad is not None]


def state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors in ``optimizer.state[parameter][key]``, for all parameters and keys, also those in lists."""
    return [value for state in optimizer.state.values() if isinstance(state, dict)
            for value in tensors_in(state.values())]


def listed(optimizer: torch.optim.Optimizer) -> int:
    """Return how many objects the lists in an optimizer's state contain.
    ``LBFGS`` has more of them after each step, up to its ``history_size``; PyTorch's other optimizers have none."""
    if _by_parameter(optimizer):
        return 0
    return sum(len(value) for state in optimizer.state.values() if isinstance(state, dict)
               for value in state.values() if isinstance(value, list))


def nbytes_of(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of the tensors' storages, each storage counted once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors
                if t.layout is torch.strided}.values())


def parts_of(optimizer: torch.optim.Optimizer) -> list[Part]:
    """Split an optimizer's parameters, in its order, into parts of at most max(all / 16, largest parameter) bytes."""
    groups = [group["params"] for group in optimizer.param_groups]
    sizes = [p.numel() * p.element_size() for group in groups for p in group]
    most = max(max(sizes, default=0), -(-sum(sizes) // MOST_PARTS))
    parts: list[Part] = []
    room = 0
    for number, group in enumerate(groups):
        for p in group:
            nbytes = p.numel() * p.element_size()
            if not parts or nbytes > room:
                parts.append([[] for _ in groups])
                room = most
            parts[-1][number].append(p)
            room -= nbytes
    return parts


def step_in_parts(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
                  ) -> Callable[[], Any] | None:
    """Return a function that runs the optimizer's step without its hooks; None if it may not run part by part.

    It may not if the step has arguments, such as a closure, if the program has registered hooks that must see the
    whole step or has wrapped the step itself, or if the class of the optimizer is not in ``BY_PARAMETER``.
    args, kwargs: those of ``step()``.
    """
    asked = len(args) > 1 or any(value is not None for value in kwargs.values())
    if not _by_parameter(optimizer) or asked or _others_hook() or (
            optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks):
        return None
    step = type(optimizer).step.__wrapped__  # type: ignore[attr-defined] # inside PyTorch's hooks
    return lambda: step(optimizer)


def closure_then(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any],
                 then: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return a step's arguments, with the closure replaced by one that also calls ``then`` at its end.

    Return None if there is no closure, or for an optimizer outside ``BY_PARAMETER``, such as LBFGS, because it may use
    its state before the closure has ended.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None or not _by_parameter(optimizer):
        return None

    @functools.wraps(closure)
    def both() -> Any:
        loss = closure()
        then()
        return loss
    return (args[0], both, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}


def _by_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """True for a class in ``BY_PARAMETER`` with PyTorch's own step, hooked, and neither wrapped nor replaced."""
    kind = type(optimizer)
    if kind.__name__ not in BY_PARAMETER or kind is not getattr(torch.optim, kind.__name__, None):
        return False
    step: Any = kind.step
    hooked = hasattr(step, "__wrapped__")
    while step is not None:
        # functools.wraps copies the name, the module and the attributes of a function, but not its globals.
        if not getattr(step, "__globals__", {}).get("__name__", "").startswith(("torch.optim.", "torch.utils.")):
            return False
        step = getattr(step, "__wrapped__", None)
    return hooked


def _others_hook() -> bool:
    """True if a program has registered global hooks around the steps of optimizers."""
    every = (*hooks._global_optimizer_pre_hooks.values(), *hooks._global_optimizer_post_hooks.values())
    return any(not getattr(hook, "__module__", "").startswith("minidl.torch") for hook in every)
