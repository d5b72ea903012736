"""Atomic writing of minidl's files, without overwriting files that minidl did not write. Knows no format.

A file is written under a hidden name in the target's folder, synced, and renamed to the target; then the folder is
synced. ``replace_file`` does this in a folder of minidl's, and raises OSError. At a path that the user named, an
existing file is overwritten only if it is empty or begins like a file of minidl's, or with ``force``; a path that is
not a regular file (a folder, link or device) is never overwritten. ``require_place`` checks this before the work,
``write_whole`` writes; both raise Unwritable with the path.

``lock_folder`` locks a folder between processes, until the process that holds the lock ends. The folder itself is
locked, so no lock file is left behind, even if the program is killed. On systems without such locks (Windows, some
network file systems) there is no protection.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minidl.errors import UserError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


class Unwritable(UserError):
    """The error for a file that cannot be written."""


Own = Callable[[bytes], bool]  # True if minidl wrote the file that begins with these bytes
HEAD_BYTES = 4096  # the bytes passed to ``Own``
HIDDEN = "."
_LONGEST_NAME = 200  # bytes, of the 255 that most file systems allow: the process number follows
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_MORE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # a folder of a file system, or with rights, that forbids it


def begins_with(mark: bytes) -> Own:
    """Return a function that is True for the first bytes of a file if these begin with ``mark``, as minidl's do."""
    return lambda head: head.startswith(mark)


def require_place(path: str | Path, own: Own, *, force: bool = False) -> None:
    """Raise Unwritable if ``write_whole`` with these arguments could not write; an existing file is not changed."""
    with _refusing(path):
        _require_ours(Path(path), own, force=force)
        file = _beside(Path(path))
        try:
            os.close(create(file))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file)


def write_whole(path: str | Path, data: bytes | Iterable[bytes | memoryview], own: Own, *, force: bool = False) -> None:
    """Write a file atomically from bytes or an iterable of pieces; on an error the old file stays.
    Raises Unwritable, also for an existing file whose first bytes ``own`` does not recognize, unless ``force``."""
    with _in_place_of(path, own, force=force) as number:
        for piece in (data,) if isinstance(data, bytes) else data:
            write_all(number, piece)
            del piece  # free it before the iterator makes the next one


@contextmanager
def open_whole(path: str | Path, own: Own, *, force: bool = False) -> Iterator[BinaryIO]:
    """Yield a file open for writing, which replaces ``path`` unless the block raises an error.
    Raises Unwritable as ``write_whole`` does."""
    with _in_place_of(path, own, force=force) as number, open(number, "w+b", closefd=False) as file:
        yield file


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file of minidl's atomically: it never has a part of the content. Raises OSError if that fails."""
    with _replacing(path, path.with_name(HIDDEN + path.name)) as number:
        write_all(number, data)


def append_to_file(path: Path, data: bytes) -> None:
    """Append to a file of minidl's, which is created if missing. Raises OSError if that fails."""
    number = os.open(path, _MORE, 0o666)
    try:
        write_all(number, data)
    finally:
        os.close(number)


@contextmanager
def _in_place_of(path: str | Path, own: Own, *, force: bool) -> Iterator[int]:
    """Yield the descriptor of a new file, which replaces ``path`` unless the block raises an error."""
    target = Path(path)

    def require_ours() -> None:
        _require_ours(target, own, force=force)

    with _refusing(path):
        require_ours()
        with _replacing(target, _beside(target), require_ours) as number:  # checked again before the rename
            yield number


@contextmanager
def _replacing(target: Path, hidden: Path, require: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Yield the descriptor of a new file named ``hidden``. Raises OSError if that fails.

    After the block, sync the file, call ``require`` (which may raise an error), and rename the file to ``target``.
    """
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
    """Create a file with the umask's mode and return its descriptor. Raises OSError if that fails.
    An existing file is deleted. Callers pass only hidden names, or names in a hidden folder, where a killed program
    may have left a file."""
    try:
        return os.open(path, _NEW, 0o666)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _NEW, 0o666)


def write_all(number: int, data: bytes | memoryview) -> None:
    """Write all of ``data`` to the open file with descriptor ``number``. Raises OSError if that fails."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[os.write(number, rest):]


def make_folder(path: Path) -> None:
    """Create a folder and its parents if missing. Raises OSError if that fails."""
    if not path.is_dir():
        os.makedirs(path, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that its entries survive a crash, if the system supports it. Raises OSError if that fails."""
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
        raise Unwritable(f"cannot write {path}: a file name cannot contain NUL")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        raise Unwritable(f"cannot write {path}: Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise Unwritable(f"cannot write {path}: it is a {_kind(found.st_mode)}, and only files are overwritten")
    if force or not found.st_size:
        return
    with open(path, "rb") as file:
        if not own(file.read(HEAD_BYTES)):
            raise Unwritable(f"cannot write {path}: minidl did not write the existing file; --force overwrites it "
                             "(in Python force=True)")
    if not os.access(path, os.W_OK):
        raise Unwritable(f"cannot write {path}: Permission denied")


def _kind(mode: int) -> str:
    return "link" if stat.S_ISLNK(mode) else "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) \
        else "device"


def _beside(path: Path) -> Path:
    """Return a hidden name in the same folder that is unique to this process, short enough for file systems."""
    return path.parent / f"{HIDDEN}{os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])}.{os.getpid()}"


@contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror or error}") from None


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
