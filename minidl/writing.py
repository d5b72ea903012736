"""Files that a command leaves where it was told to: whole or not at all, and never over a stranger's. Knows no format.

A file is written beside its place, under a hidden name, and takes its place by one rename when the disk has all of it.
What is there already is written over only if it is a regular file that is empty or, by its beginning, one of ours;
anything else only by force, and what is no regular file (a folder, a link, a device) never. ``require_place`` says all
this before the work is done, ``write_whole`` does it. Raises Unwritable with the path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minidl.errors import UserError


class Unwritable(UserError):
    """A file that cannot be written."""


Own = Callable[[bytes], bool]  # whether a file that begins like this is one that minidl wrote
HEAD_BYTES = 4096  # that are looked at
_LONGEST_NAME = 200  # bytes, of the 255 that most file systems allow: a number follows


def begins_with(mark: bytes) -> Own:
    """Files of ours that begin with these bytes."""
    return lambda head: head.startswith(mark)


def require_place(path: str | Path, own: Own, *, force: bool = False) -> None:
    """Raises Unwritable if a file of ours could not be written there; leaves what is there as it is."""
    with _refusing(path):
        _require_ours(Path(path), own, force=force)
        file = _beside(Path(path))
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.unlink(file)


def write_whole(path: str | Path, data: bytes | Iterable[bytes | memoryview], own: Own, *, force: bool = False) -> None:
    """Write a file, in pieces that are asked for one by one; if that fails there is what was there before."""
    with open_whole(path, own, force=force) as file:
        for piece in (data,) if isinstance(data, bytes) else data:
            file.write(piece)


@contextmanager
def open_whole(path: str | Path, own: Own, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file to be written, which takes its place if all goes well inside."""
    target = Path(path)
    with _refusing(path):
        _require_ours(target, own, force=force)
        hidden = _beside(target)
        # The mode is what the umask leaves of it, as of any new file.
        number = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with open(number, "w+b") as file:
                yield file
                file.flush()
                os.fsync(number)
            _require_ours(target, own, force=force)  # it may have come in the meantime
            os.replace(hidden, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(hidden)
            raise


def _require_ours(path: Path, own: Own, *, force: bool) -> None:
    if "\0" in str(path):
        raise Unwritable(f"cannot write {path}: no name of a file has a NUL")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        raise Unwritable(f"cannot write {path}: Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise Unwritable(f"cannot write {path}: it is a {_kind(found.st_mode)}, and only a file is written over")
    if force or not found.st_size:
        return
    with open(path, "rb") as file:
        if not own(file.read(HEAD_BYTES)):
            raise Unwritable(f"cannot write {path}: minidl did not write what is there; --force writes over it")
    if not os.access(path, os.W_OK):
        raise Unwritable(f"cannot write {path}: Permission denied")


def _kind(mode: int) -> str:
    return "link" if stat.S_ISLNK(mode) else "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) \
        else "device"


def _beside(path: Path) -> Path:
    """A name of this process's own in the same folder; as short as that of a file may have to be."""
    return path.parent / f".{os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])}.{os.getpid()}"


@contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from None
