"""The os module for those who write files, watched: a test says what becomes of each change of a file.

All that minidl writes of its own accord is written by the modules of WRITERS, through their name ``os``.
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
    """A call that is about to change a file: the name of its function ("open" if that makes a new one), and paths."""

    name: str
    paths: tuple[str, ...]
    arguments: tuple

    def half(self) -> None:
        """Carry out half of a write, as a machine may that stops; of all else nothing."""
        if self.name == "write":
            number, data = self.arguments
            os.write(number, data[:len(data) // 2])


class WatchedOs:
    """The os module; ``before`` is shown each Change before it is made, and may raise."""

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
    """Show all changes of files by WRITERS; ``put`` may be a monkeypatch's, which takes it back."""
    watched = WatchedOs(before)
    for module in WRITERS:
        put(module, "os", watched)


def full_from(at: int) -> Callable[[Change], None]:
    """A disk that is full at change number ``at``, counted from 1, and from there on."""
    left = at

    def refuse(change: Change) -> None:
        nonlocal left
        left -= change.name not in GIVING_ROOM
        if left <= 0 and change.name not in GIVING_ROOM:
            raise OSError(28, "No space left on device")
    return refuse


def kill() -> None:
    """End this process as nobody can prevent."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at(at: int, die: Callable[[], None] = kill) -> Callable[[Change], None]:
    """The program ends at its change number ``at``, counted from 1: half way through a write, before anything else."""
    left = at

    def end(change: Change) -> None:
        nonlocal left
        left -= 1
        if not left:
            change.half()
        if left <= 0:
            die()
    return end
