"""Switches that enable or disable gradients for a part of a program.
Each works as a context manager and as a decorator, but for ``is_grad_enabled``, which asks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from minidl.context import current


@contextmanager
def no_grad() -> Iterator[None]:
    """Disable gradients in the ``with`` block or the decorated function: calls keep no inputs for a backward pass."""
    executor = current()
    before, executor.grad_enabled = executor.grad_enabled, False
    try:
        yield
    finally:
        executor.grad_enabled = before


inference_mode = no_grad
"""The same as ``no_grad``; unlike in PyTorch, tensors made inside may be used anywhere."""


@contextmanager
def enable_grad() -> Iterator[None]:
    """Enable gradients inside the ``with`` block or the decorated function, also within ``no_grad()``."""
    executor = current()
    before, executor.grad_enabled = executor.grad_enabled, True
    try:
        yield
    finally:
        executor.grad_enabled = before


class set_grad_enabled:  # noqa: N801 - PyTorch's name
    """Enable or disable gradients from now on, or inside a ``with`` block or the decorated function."""

    def __init__(self, mode: bool) -> None:
        executor = current()
        self._mode = bool(mode)
        self._before, executor.grad_enabled = executor.grad_enabled, self._mode

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a version of ``function`` that runs in this mode. The mode outside stays what it was before."""
        self.__exit__()

        @wraps(function)
        def inside(*args: Any, **options: Any) -> Any:
            with set_grad_enabled(self._mode):
                return function(*args, **options)
        return inside

    def __enter__(self) -> None:
        """Do nothing: the constructor has set the mode."""

    def __exit__(self, *_: object) -> None:
        current().grad_enabled = self._before


def is_grad_enabled() -> bool:
    """Return True if gradients are enabled now."""
    return current().grad_enabled
