"""Switches that enable or disable gradients for a part of a program.
Each works as a context manager and as a decorator, but for ``is_grad_enabled``, which asks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial, wraps
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from minidl.context import current

if TYPE_CHECKING:
    from minidl.executor import Executor

F = TypeVar("F", bound=Callable[..., Any])


class _GradMode:
    """Gradients are enabled or disabled inside each ``with`` block of this object, or in the decorated function."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._before: list[tuple[Executor, bool]] = []  # what each open block found, as blocks may be nested

    def __enter__(self) -> None:
        executor = current()
        self._before.append((executor, executor.grad_enabled))
        executor.grad_enabled = self._enabled

    def __exit__(self, *_: object) -> None:
        executor, before = self._before.pop()
        executor.grad_enabled = before

    def __call__(self, function: F) -> F:
        """Return a version of a function, also of a generator's, whose code runs in this mode."""
        enabled = self._enabled  # each call has a mode of its own: threads share the function

        @wraps(function)
        def inside(*args: Any, **options: Any) -> Any:
            with _GradMode(enabled):
                return function(*args, **options)

        @wraps(function)
        def step_by_step(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            steps = function(*args, **options)
            resume: Callable[[], Any] = partial(next, steps)
            while True:
                try:
                    with _GradMode(enabled):  # the code between two steps is the caller's
                        made = resume()
                except StopIteration as end:
                    return end.value
                try:
                    resume = partial(steps.send, (yield made))
                except BaseException as error:
                    resume = partial(steps.throw, error)
        return cast(F, step_by_step if isgeneratorfunction(function) else inside)


class no_grad(_GradMode):  # noqa: N801 - PyTorch's name
    """Disable gradients in the ``with`` block or the decorated function: calls keep no inputs for a backward pass."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)  # ``@no_grad`` without ()

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(_GradMode):  # noqa: N801 - PyTorch's name
    """Enable gradients inside the ``with`` block or the decorated function, also within ``no_grad()``."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self) -> None:
        super().__init__(True)


class inference_mode(_GradMode):  # noqa: N801 - PyTorch's name
    """Disable gradients as ``no_grad`` does; unlike in PyTorch, tensors made inside may be used anywhere.
    ``inference_mode(False)`` enables them."""

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)


class set_grad_enabled(_GradMode):  # noqa: N801 - PyTorch's name
    """Enable or disable gradients from now on, or inside a ``with`` block or the decorated function."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        super().__enter__()
        self._made = True  # the constructor has opened the first block

    def __enter__(self) -> None:
        if self._made:
            self._made, current().grad_enabled = False, self._enabled
        else:
            super().__enter__()

    def __call__(self, function: F) -> F:
        """Return a version of ``function`` that runs in this mode. The mode outside stays what it was before."""
        if self._made:
            self._made = False
            self.__exit__()
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Return True if gradients are enabled now."""
    return current().grad_enabled
