"""The end of a run of several ranks: an error of one ends all, and says which rank it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from minidl.cli.command import described
from minidl.errors import UserError
from minidl.ranks import Ranks

HEAD_START_S, MOST_S = 0.2, 1.0  # between the ranks, if one error has come to all: the first one tells of it


class Together:
    """The ranks of a run, once they are known. ``failed``: an error has ended this process's rank."""

    def __init__(self) -> None:
        self._ranks: Ranks | None = None
        self.failed = False

    @contextmanager
    def ending(self, ranks: Ranks | None) -> Iterator[None]:
        """Return a context for the run of these ranks. An error in it becomes a UserError that names the rank."""
        self._ranks = ranks
        if ranks is None:
            yield
            return
        try:
            yield
        except Exception as error:
            self.failed = True
            time.sleep(min(HEAD_START_S * ranks.rank, MOST_S))
            raise UserError(f"{ranks}: {described(error)}") from error
        except BaseException:  # a signal
            self.failed = True
            raise

    def end(self, code: int) -> None:
        """End the other ranks with this exit code after an error here: else they would wait for this rank for ever."""
        if self.failed and self._ranks is not None:
            self._ranks.fail(code)
