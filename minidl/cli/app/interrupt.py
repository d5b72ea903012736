"""Ctrl-C ends a loop after the step it is in; a second one ends the program at once. Knows signals and no loop.

Outside of the loop a signal ends the program at once: see ``minidl.cli.command``.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minidl.cli.command import SIGNALS, EndSignal


class Stop(EndSignal):
    """True once a signal has asked for the stop; ``number``: of the signal."""

    def __bool__(self) -> bool:
        return self.number is not None


@contextmanager
def stop_after_the_step() -> Iterator[Stop]:
    """Inside, the first of SIGNALS only makes the result true; a second one has its usual effect."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.number = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        restore()
