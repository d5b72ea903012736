"""Hooks: functions called before or after a module's forward(), which see or change its inputs or output."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

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
