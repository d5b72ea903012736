"""One writer a run folder: the process that writes holds a lock on it, which ends with the process. Knows no run.

The lock is on the folder itself, so it leaves no file behind, and none that a killed program could leave. Where the
system has no such locks (Windows, some network file systems) nothing is held.
"""

from __future__ import annotations

import os
from pathlib import Path

from minidl.errors import UserError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


class RunLock:
    """Not held, until ``take``; then held until ``close``. Without a folder there is nothing to hold."""

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._number: int | None = None

    def take(self) -> None:
        """Hold the folder, if it is there and not held yet. Raises UserError if another run holds it."""
        if self._folder is None or self._number is not None or fcntl is None or not self._folder.is_dir():
            return
        try:
            number = os.open(self._folder, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"--run-dir {self._folder}: {error.strerror or error}") from None
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            raise UserError(f"--run-dir {self._folder}: another run is writing in it") from None
        except OSError:  # a file system without locks
            os.close(number)
        else:
            self._number = number

    def close(self) -> None:
        """Let others write."""
        if self._number is not None:
            os.close(self._number)
            self._number = None
