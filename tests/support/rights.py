"""A folder that nobody may read, also where tests run as root, who may read everything."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Within, files are opened with the rights of a user who owns none."""
    if os.geteuid() != 0:  # its own folder without any rights is closed to everybody else
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
