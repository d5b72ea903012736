"""Take away the right to read a folder, even if tests run as root."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Open files inside the ``with`` block with the rights of a user who owns none."""
    if os.geteuid() != 0:  # a folder without any rights is enough for an ordinary user
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
