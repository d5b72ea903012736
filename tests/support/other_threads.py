"""What other threads do, and how often the interpreter goes from one to another."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from cells import PATIENCE_S


def in_a_thread(function: Callable[[], Any], context: Context | None = None) -> Any:
    """Call a function in a thread of its own and assert that it comes back; returns what it returned or raised."""
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
    """Call each in a thread of its own."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    """Inside, the interpreter goes to another thread this often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
