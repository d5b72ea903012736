"""Ctrl-C ends a training loop after its current step; a second Ctrl-C ends the program at once.

Outside of a loop the first Ctrl-C ends the program at once: see ``minidl.cli.command``.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minidl.cli.command import SIGNALS, EndSignal
from minidl.ranks import Ranks


class Stop(EndSignal):
    """A flag that is true once a signal has asked the loop to stop; with several ranks, once all ranks know of it.
    If one rank stopped alone, the others would wait for it. number: the number of the signal."""

    def __init__(self, ranks: Ranks | None) -> None:
        self._ranks = ranks
        self._asked: int | None = None

    def ask(self, number: int) -> None:
        """Record that the signal ``number`` has asked the loop to stop."""
        self._asked = number
        if self._ranks is None:
            self.number = number

    def agree(self) -> None:
        """Exchange the stop requests of all ranks; each rank must call this at the same point of its loop."""
        if self._ranks is not None:
            self.number = next((asked for asked in self._ranks.agree(self._asked) if asked is not None), None)

    def __bool__(self) -> bool:
        return self.number is not None


@contextmanager
def stop_after_the_step(ranks: Ranks | None = None) -> Iterator[Stop]:
    """Inside the ``with`` block, the first of SIGNALS only makes the yielded Stop true; a second ends the program."""
    stop = Stop(ranks)
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.ask(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        restore()
