"""A file lock by which a run folder has one writer at a time. It ends with the process that holds it."""

import os
from pathlib import Path

from minidl.errors import UserError
from minidl.outside.writing import lock_folder


class RunLock:
    """A lock on a run folder, held from ``take`` until ``close``. Without a folder it does nothing."""

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._number: int | None = None

    def take(self) -> None:
        """Lock the folder, if it exists and is not locked by this object.
        Raises UserError if another run holds the lock."""
        if self._folder is None or self._number is not None or not self._folder.is_dir():
            return
        try:
            self._number = lock_folder(self._folder, wait=False)
        except BlockingIOError:
            raise UserError(f"--run-dir {self._folder}: another run is writing in it") from None
        except OSError as error:
            raise UserError(f"--run-dir {self._folder}: {error.strerror or error}") from None

    def close(self) -> None:
        """Release the lock."""
        if self._number is not None:
            os.close(self._number)
            self._number = None
