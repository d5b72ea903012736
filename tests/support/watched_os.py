"""A watched ``os`` module: a test decides the outcome of each change of a file.

The modules of WRITERS write all files that minidl writes by itself, through their name ``os``.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from minidl.checkpoint import durable
from minidl.outside import writing

WRITERS = (writing, durable)
OF_FILES, OF_NAMES = ("write", "fsync"), ("rename", "replace", "unlink", "rmdir", "mkdir", "makedirs")
GIVING_ROOM = ("unlink", "rmdir")


@dataclass(frozen=True)
class Change:
    """A call that is about to change a file: the name of its function ("open" if it makes a new file), and paths."""

    name: str
    paths: tuple[str, ...]
    arguments: tuple

    def half(self) -> None:
        """Carry out half of a write, as a machine may that stops; nothing of other changes."""
        if self.name == "write":
            number, data = self.arguments
            os.write(number, data[:len(data) // 2])


class WatchedOs:
    """The os module; ``before`` is called with each Change before it is made, and may raise."""

    def __init__(self, before: Callable[[Change], None]) -> None:
        self._before = before
        self._paths: dict[int, str] = {}

    def __getattr__(self, name):
        function = getattr(os, name)
        if name != "open" and name not in OF_FILES + OF_NAMES:
            return function

        def call(first, *rest, **options):
            if name == "open":
                if rest[0] & os.O_CREAT:
                    self._before(Change(name, (str(first),), rest))
                number = function(first, *rest, **options)
                self._paths[number] = str(first)
                return number
            paths = (self._paths[first],) if name in OF_FILES else tuple(map(str, (first, *rest)))
            self._before(Change(name, paths, (first, *rest)))
            return function(first, *rest, **options)
        return call


def watch(before: Callable[[Change], None], put: Callable = setattr) -> None:
    """Show all file changes of WRITERS to ``before``; ``put`` may be a monkeypatch's, which undoes it."""
    watched = WatchedOs(before)
    for module in WRITERS:
        put(module, "os", watched)


def full_from(at: int) -> Callable[[Change], None]:
    """Return a ``before`` that simulates a disk that is full from change number ``at`` on, counted from 1."""
    left = at

    def refuse(change: Change) -> None:
        nonlocal left
        left -= change.name not in GIVING_ROOM
        if left <= 0 and change.name not in GIVING_ROOM:
            raise OSError(28, "No space left on device")
    return refuse


def kill() -> None:
    """End this process at once, without cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(at: int, die: Callable[[], None] = kill) -> Callable[[Change], None]:
    """Return a ``before`` that ends the program at change number ``at``, from 1: half way through a write, or before.
    """
    left = at

    def end(change: Change) -> None:
        nonlocal left
        left -= 1
        if not left:
            change.half()
        if left <= 0:
            die()
    return end
