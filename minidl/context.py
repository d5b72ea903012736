"""Keeps the current executor: each thread, and each asynchronous task, has its own stack of entered executors.

An executor serves one thread at a time. It refuses a second thread that enters it, or that reaches it by a copied
context. A fork copies no threads, so the executors of the parent process refuse all calls in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, get_ident
from typing import TYPE_CHECKING
from weakref import WeakSet

from minidl.errors import UserError

if TYPE_CHECKING:
    from minidl.executor import Executor

FREE, FORKED = 0, -1  # values of ``Executor.thread``: no thread is inside; the process has forked

_stack: ContextVar[tuple[Executor, ...]] = ContextVar("executors", default=())
entered: Callable[[], tuple[Executor, ...]] = _stack.get  # the executors that are entered, the innermost last
_known: WeakSet[Executor] = WeakSet()
_entering = Lock()


def current() -> Executor:
    """Return the executor that runs operations in this thread: the one entered last.
    Raises UserError outside of every ``with runtime:``, or if another thread is inside that executor."""
    stack = _stack.get()
    if not stack:
        raise UserError("no runtime is active in this thread: put the code under `with minidl.Runtime(...):`")
    executor = stack[-1]
    if executor.thread != get_ident():
        raise UserError(_refusal(executor))
    return executor


@contextmanager
def activate(executor: Executor) -> Iterator[None]:
    """Make an executor the current one inside a ``with`` block.
    Raises UserError if another thread is inside the executor, or in a child process after a fork."""
    thread = get_ident()
    with _entering:
        if executor.thread not in (FREE, thread):
            raise UserError(_refusal(executor))
        executor.thread = thread
        executor.entered += 1
        _known.add(executor)
    _stack.set((*_stack.get(), executor))
    try:
        yield
    finally:
        stack = list(_stack.get())
        if executor in stack:
            stack.reverse()  # the innermost: it may have been entered more than once
            stack.remove(executor)
            stack.reverse()
            _stack.set(tuple(stack))
        executor.entered -= 1
        if not executor.entered and executor.thread != FORKED:
            executor.thread = FREE


def _refusal(executor: Executor) -> str:
    name = executor.device.name
    if executor.thread == FORKED:
        return f"this runtime on {name} was made before a fork: the child process must make one of its own"
    return (f"this runtime on {name} is in use by another thread: one at a time, each under its own `with runtime:`, "
            "or a runtime for each thread")


def _after_fork() -> None:
    """Runs in a forked child process: marks all executors as unusable, as the parent's worker threads are missing."""
    global _entering
    _entering = Lock()
    for executor in list(_known):
        executor.thread = FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
