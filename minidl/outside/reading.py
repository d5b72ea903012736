"""Reading of files and JSON from outside minidl; no other module opens them. Knows no format.

A path may lead to anything. A path that is not a regular file (a folder, pipe, socket or device) raises Unreadable
before it is opened; so does a file without read permission, or longer than the caller's limit. Links are followed.
Nothing here blocks, and every message is one line.
"""

import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, TypeVar

from minidl.errors import UserError

Path = str | os.PathLike[str]
Found = TypeVar("Found")

MOST_JSON_BYTES = 256 << 20
_GZIP = b"\x1f\x8b"  # what a file begins with that gzip has made
_MARK = "\ufeff"  # the byte order mark that some programs write at the beginning of a text
# Non-blocking, because opening a pipe without a writer would wait forever.
_TO_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"))


class Unreadable(UserError):
    """The error for a file or folder that cannot be read. path: its path; why: the reason."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"cannot read {path}: {why}")
        self.path = path
        self.why = why


class NotJson(UserError, ValueError):
    """The error for invalid JSON, with the byte ``offset`` and the description ``what`` of the mistake."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"at byte {offset}: {what}")
        self.offset = offset
        self.what = what


def reason(error: OSError | ValueError) -> str:
    """Return the reason why a system call refused a path, in a few words."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "no file can have that name"  # it contains a zero byte, or a character that no file system allows


# Files ---------------------------------------------------------------------------------------------------------------
def descriptor(path: Path) -> int:
    """Open a regular file and return its descriptor, which the caller closes. Raises Unreadable if that fails."""
    _require_file(path, _system_call(path, os.stat))  # checked first, because opening a device may have effects
    number: int = _system_call(path, lambda name: os.open(name, _TO_READ))
    try:
        _require_file(path, os.fstat(number))  # the path may have changed since the first check
    except BaseException:
        os.close(number)
        raise
    return number


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading bytes and return it. Raises Unreadable if that fails."""
    return os.fdopen(descriptor(path), "rb")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Return a context that turns an OSError inside it into Unreadable: a disk may fail after ``path`` was opened."""
    try:
        yield
    except OSError as error:
        raise Unreadable(path, reason(error)) from None


def read_bytes(path: Path, *, most: int) -> bytes:
    """Return the content of a file. Raises Unreadable if it cannot be read or has more than ``most`` bytes."""
    with reading(path), open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unreadable(path, f"longer than the limit of {most} bytes")
    return data


def read_text(path: Path, *, most: int) -> str:
    """Return the text of a UTF-8 file of at most ``most`` bytes, without a byte order mark. Raises Unreadable for any
    other. A file that gzip has compressed is decompressed; its text may have at most ``most`` bytes, too."""
    data = read_bytes(path, most=most)
    try:
        if data.startswith(_GZIP):
            reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
            data = reader.decompress(data, most + 1)
            if len(data) > most:
                raise Unreadable(path, f"longer than the limit of {most} bytes")
            if not reader.eof:
                raise Unreadable(path, "damaged gzip: it ends too early")
        return data.decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        raise Unreadable(path, f"not UTF-8 at byte {error.start}") from None
    except zlib.error as error:
        raise Unreadable(path, f"damaged gzip: {error}") from None


def _require_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(path, f"{next((name for of, name in _KINDS if of(found.st_mode)), 'something')}, not a file")


# Names ---------------------------------------------------------------------------------------------------------------
def is_there(path: Path) -> bool:
    """True if a path exists. Raises Unreadable if that is unknown (a folder without permission, a name too long)."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """True if a path is a regular file. Raises Unreadable like ``is_there``."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """True if a path is a folder. Raises Unreadable like ``is_there``."""
    return stat.S_ISDIR(_mode(path) or 0)


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in a folder. Raises Unreadable if there is no such folder, or it cannot be read."""
    return sorted(_system_call(folder, os.listdir))


def _mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Unreadable(path, reason(error)) from None


def _system_call(path: Path, call: Callable[[Path], Found]) -> Found:
    try:
        return call(path)
    except (OSError, ValueError) as error:
        raise Unreadable(path, reason(error)) from None


# JSON ----------------------------------------------------------------------------------------------------------------
def parse_json(data: bytes | str, *, unique_keys: bool = False) -> Any:
    """Return the value of a JSON document. Raises NotJson for an invalid document.
    It is invalid also if nested too deep, with a number of thousands of digits or, with ``unique_keys``, equal keys."""
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
    """Return the value in a JSON file. Raises Unreadable for a file that is no JSON or longer than ``most`` bytes."""
    try:
        return parse_json(read_bytes(path, most=most))
    except NotJson as error:
        raise Unreadable(path, str(error)) from None
