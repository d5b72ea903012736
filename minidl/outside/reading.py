"""What lies outside, read: the one place where files and JSON that others have made are opened. Knows no format.

A name may lead to anything. What is no regular file (a folder, a pipe that nobody writes to, a socket, a device without
an end) is refused before it is opened, by name; so is what may not be read, and what is longer than its reader takes.
Links are followed. Nothing here waits, and no message has more than one line.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, TypeVar

from minidl.errors import UserError

Path = str | os.PathLike[str]
Found = TypeVar("Found")

MOST_JSON_BYTES = 256 << 20
_MARK = "\ufeff"  # that some programs write at the beginning of a text
# Not to wait: a pipe that nobody writes to would never open.
_TO_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"))


class Unreadable(UserError):
    """A file or folder that cannot be read: ``path``, and ``why``."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"cannot read {path}: {why}")
        self.path = path
        self.why = why


class NotJson(UserError, ValueError):
    """Bytes that are no JSON: ``offset`` is where that shows, ``what`` is wrong there."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"at byte {offset}: {what}")
        self.offset = offset
        self.what = what


def reason(error: OSError | ValueError) -> str:
    """Why a system call refused a name, in a few words."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "no file can have that name"  # a zero byte is in it, or a character that no file system takes


# Files ---------------------------------------------------------------------------------------------------------------
def descriptor(path: Path) -> int:
    """The number of a regular file, opened to be read; the caller closes it. Raises Unreadable."""
    _require_file(path, _asked(path, os.stat))  # opening a device may do something
    number: int = _asked(path, lambda name: os.open(name, _TO_READ))
    try:
        _require_file(path, os.fstat(number))  # something else may have taken the name
    except BaseException:
        os.close(number)
        raise
    return number


def open_file(path: Path) -> BufferedReader:
    """A regular file, opened to be read as bytes. Raises Unreadable."""
    return os.fdopen(descriptor(path), "rb")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within, whatever the system refuses is Unreadable of this name: a disk may fail after a file was opened."""
    try:
        yield
    except OSError as error:
        raise Unreadable(path, reason(error)) from None


def read_bytes(path: Path, *, most: int) -> bytes:
    """All of a file, if it is not longer than ``most`` bytes. Raises Unreadable."""
    with reading(path), open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unreadable(path, f"longer than the limit of {most} bytes")
    return data


def read_text(path: Path, *, most: int) -> str:
    """All of a file of UTF-8, if it is not longer than ``most`` bytes; a byte order mark is left out.

    Raises Unreadable.
    """
    data = read_bytes(path, most=most)
    try:
        return data.decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        raise Unreadable(path, f"not UTF-8 at byte {error.start}") from None


def _require_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(path, f"{next((name for of, name in _KINDS if of(found.st_mode)), 'something')}, not a file")


# Names ---------------------------------------------------------------------------------------------------------------
def is_there(path: Path) -> bool:
    """Whether a name leads to anything. Raises Unreadable where that cannot be said (a folder that may not be searched,
    a name that is too long), unlike ``Path.exists``, which raises other errors there."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether a name leads to a regular file. Raises Unreadable like ``is_there``."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """Whether a name leads to a folder. Raises Unreadable like ``is_there``."""
    return stat.S_ISDIR(_mode(path) or 0)


def names_in(folder: Path) -> list[str]:
    """What lies in a folder, in the order of the names. Raises Unreadable."""
    return sorted(_asked(folder, os.listdir))


def _mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Unreadable(path, reason(error)) from None


def _asked(path: Path, call: Callable[[Path], Found]) -> Found:
    try:
        return call(path)
    except (OSError, ValueError) as error:
        raise Unreadable(path, reason(error)) from None


# JSON ----------------------------------------------------------------------------------------------------------------
def parse_json(data: bytes | str, *, unique_keys: bool = False) -> Any:
    """The value that a JSON document holds. Raises NotJson, also for what is nested too deeply, for a number of
    thousands of digits and, if ``unique_keys``, for an object that has a key twice."""
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key comes twice")
        return found

    try:
        text = data if isinstance(data, str) else data.decode().removeprefix(_MARK)
        return json.loads(text, object_pairs_hook=unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise NotJson(len(error.doc[:error.pos].encode(errors="surrogatepass")), f"not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise NotJson(error.start, "not UTF-8") from None
    except RecursionError:
        raise NotJson(0, "not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        why = "a number of thousands of digits" if "digits" in str(error) else str(error)
        raise NotJson(0, f"not JSON that can be read: {why}") from None


def read_json(path: Path, *, most: int = MOST_JSON_BYTES) -> Any:
    """The value that a file of JSON holds. Raises Unreadable."""
    try:
        return parse_json(read_bytes(path, most=most))
    except NotJson as error:
        raise Unreadable(path, str(error)) from None
