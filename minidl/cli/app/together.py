"""Ends a run of several ranks: an error on one rank ends all of them, and the message names that rank."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from minidl.cli.command import described
from minidl.errors import UserError
from minidl.ranks import Ranks

HEAD_START_S, MOST_S = 0.2, 1.0  # between the ranks, if one error has come to all: the first one tells of it


class Together:
    """The ranks of a run, set once they are known. ``failed``: this process's rank has ended with an error."""

    def __init__(self) -> None:
        self._ranks: Ranks | None = None
        self.failed = False

    @contextmanager
    def ending(self, ranks: Ranks | None) -> Iterator[None]:
        """Return a context in which these ranks run. An error inside becomes a UserError that names the rank."""
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
        """If this rank has failed, end the others with this exit code; they would otherwise wait for it forever."""
        if self.failed and self._ranks is not None:
            self._ranks.fail(code)
