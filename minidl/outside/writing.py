"""Files, written: the one place where minidl's files are made. Whole or not at all, and never over a stranger's.

A file is written beside its place, under a hidden name, and takes its place by one rename when the disk has all of it;
then its folder is synced, so that the name lasts. ``replace_file`` does this in a folder of ours, and raises OSError.

Where a command was told to write, what is there already is written over only if it is a regular file that is empty or,
by its beginning, one of ours; anything else only by force, and what is no regular file (a folder, a link, a device)
never. ``require_place`` says all this before the work is done, ``write_whole`` does it; they raise Unwritable with the
path. Knows no format.
"""

from __future__ import annotations

import errno
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
HIDDEN = "."
_LONGEST_NAME = 200  # bytes, of the 255 that most file systems allow: a number follows
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # a folder of a file system, or with rights, that forbids it


def begins_with(mark: bytes) -> Own:
    """Files of ours that begin with these bytes."""
    return lambda head: head.startswith(mark)


def require_place(path: str | Path, own: Own, *, force: bool = False) -> None:
    """Raises Unwritable if a file of ours could not be written there; leaves what is there as it is."""
    with _refusing(path):
        _require_ours(Path(path), own, force=force)
        file = _beside(Path(path))
        try:
            os.close(create(file))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file)


def write_whole(path: str | Path, data: bytes | Iterable[bytes | memoryview], own: Own, *, force: bool = False) -> None:
    """Write a file, in pieces that are asked for one by one; if that fails there is what was there before."""
    with _in_place_of(path, own, force=force) as number:
        for piece in (data,) if isinstance(data, bytes) else data:
            write_all(number, piece)
            del piece  # before the next one is made


@contextmanager
def open_whole(path: str | Path, own: Own, *, force: bool = False) -> Iterator[BinaryIO]:
    """A file to be written, which takes its place if all goes well inside."""
    with _in_place_of(path, own, force=force) as number, open(number, "w+b", closefd=False) as file:
        yield file


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of ours anew: whoever opens it finds the old content or the new, whole. Raises OSError."""
    with _replacing(path, path.with_name(HIDDEN + path.name)) as number:
        write_all(number, data)


def append_to_file(path: Path, data: bytes) -> None:
    """Write at the end of a file of ours, which need not be there yet. Raises OSError."""
    number = os.open(path, _MORE, 0o666)
    try:
        write_all(number, data)
    finally:
        os.close(number)


@contextmanager
def _in_place_of(path: str | Path, own: Own, *, force: bool) -> Iterator[int]:
    """The number of a file that takes its place if all goes well inside."""
    target = Path(path)

    def require_ours() -> None:
        _require_ours(target, own, force=force)

    with _refusing(path):
        require_ours()
        with _replacing(target, _beside(target), require_ours) as number:  # something may come in the meantime
            yield number


@contextmanager
def _replacing(target: Path, hidden: Path, require: Callable[[], None] = lambda: None) -> Iterator[int]:
    """The number of a new file under a hidden name, which becomes the target when it has been written inside and what
    is required then holds. Raises OSError."""
    try:
        number = create(hidden)
        try:
            yield number
            os.fsync(number)
        finally:
            os.close(number)
        require()
        os.replace(hidden, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise
    sync_folder(target.parent)


# Steps of it ---------------------------------------------------------------------------------------------------------
def create(path: Path) -> int:
    """The number of a new file, with the mode that the umask leaves it. Raises OSError.

    What has that name goes first: names that are made like this are hidden, or lie in a folder that is, and a program
    that was killed may have left them.
    """
    try:
        return os.open(path, _NEW, 0o666)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _NEW, 0o666)


def write_all(number: int, data: bytes | memoryview) -> None:
    """Write bytes to an open file; the system may take them in parts. Raises OSError."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[os.write(number, rest):]


def make_folder(path: Path) -> None:
    """Make a folder, and those that it lies in, if it is not there yet. Raises OSError."""
    if not path.is_dir():
        os.makedirs(path, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it last, where that can be done. Raises OSError."""
    if os.name == "nt":
        return
    try:
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


# Places --------------------------------------------------------------------------------------------------------------
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
    return path.parent / f"{HIDDEN}{os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])}.{os.getpid()}"


@contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from None
