"""Whether what runs is differentiated: switches for a part of a program, each also a decorator of a function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minidl.context import current


@contextmanager
def no_grad() -> Iterator[None]:
    """Nothing that runs inside is differentiated, or keeps its inputs for it."""
    executor = current()
    before, executor.grad_enabled = executor.grad_enabled, False
    try:
        yield
    finally:
        executor.grad_enabled = before


inference_mode = no_grad
"""As ``no_grad``; what is made inside may be used anywhere."""


@contextmanager
def enable_grad() -> Iterator[None]:
    """What runs inside is differentiated, also within ``no_grad()``."""
    executor = current()
    before, executor.grad_enabled = executor.grad_enabled, True
    try:
        yield
    finally:
        executor.grad_enabled = before


class set_grad_enabled:  # noqa: N801 - PyTorch's name
    """From now on (or inside of ``with``) what runs is differentiated, or is not."""

    def __init__(self, mode: bool) -> None:
        executor = current()
        self._before, executor.grad_enabled = executor.grad_enabled, bool(mode)

    def __enter__(self) -> None:
        """The mode has been set already."""

    def __exit__(self, *_: object) -> None:
        current().grad_enabled = self._before


def is_grad_enabled() -> bool:
    """Whether what runs now is differentiated."""
    return current().grad_enabled
