"""Run functions in other threads, and set how often the interpreter switches threads."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from cells import PATIENCE_S


def in_a_thread(function: Callable[[], Any], context: Context | None = None) -> Any:
    """Call a function in its own thread, assert that it ends, and return its result or exception."""
    results = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=call if context is None else lambda: context.run(call), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    return results[0]


def all_at_once(functions: Sequence[Callable[[], Any]]) -> None:
    """Call each function in its own thread."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    """Set how often the interpreter switches threads inside the ``with`` block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
