"""A lock on a folder between processes, which ends with the process that holds it.

The lock is on the folder itself, so no file is left behind, not even by a killed program. Where the
system has no such locks (Windows, some network file systems) nothing is locked.
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
