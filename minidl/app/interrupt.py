"""Ctrl-C ends a loop after the step it is in; a second one ends the program at once. Knows signals and no loop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the second is what schedulers send before they take a machine away


class Stop:
    """True when it has been asked for; ``signal`` is the number of the signal that did."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell reports of a program that a signal has ended."""
        return 128 + (self.signal or 0)


@contextmanager
def stop_after_the_step() -> Iterator[Stop]:
    """Inside, the first of SIGNALS only makes the result true; the next does what it always did."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.signal = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        restore()
