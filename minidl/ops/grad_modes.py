"""Switches that enable or disable gradients for a part of a program.
Each works as a context manager and as a decorator."""

from collections.abc import Iterator
from contextlib import contextmanager

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
    """Enable or disable gradients from now on, or inside a ``with`` block."""

    def __init__(self, mode: bool) -> None:
        executor = current()
        self._before, executor.grad_enabled = executor.grad_enabled, bool(mode)

    def __enter__(self) -> None:
        """Do nothing: the constructor has set the mode."""

    def __exit__(self, *_: object) -> None:
        current().grad_enabled = self._before


def is_grad_enabled() -> bool:
    """Return True if gradients are enabled now."""
    return current().grad_enabled
