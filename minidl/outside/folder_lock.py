"""A lock on a folder between processes, which ends with the process that holds it.

The folder itself is locked, so no lock file is left behind, even if the program is killed. On systems without such
locks (Windows, some network file systems) there is no protection.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


def lock_folder(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder; return the descriptor that holds the lock until it is closed. None: the system has no locks.
    wait: True to wait while another process has the lock. Raises OSError if the folder cannot be opened, and its
    subclass BlockingIOError if another process has the lock."""
    if fcntl is None:
        return None
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(number)
        raise
    except OSError:  # a file system without locks
        os.close(number)
        return None
    return number
