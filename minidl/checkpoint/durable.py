"""Folders that survive a crash: written under a temporary name, synced, renamed. Knows bytes and names, no format.

A folder is published in this order, and the machine may stop after each step:

  1. its files are written and synced, in a folder whose name begins with a dot
  2. that folder is synced, so the names of its files last
  3. it is renamed, which is atomic: it exists from now on, and not before
  4. its parent folder is synced: the new name lasts

A folder is removed in the reverse order: first its name, then its files. So every folder whose name has no dot is
complete. Raises OSError, which callers turn into messages about checkpoints.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from minidl.outside.writing import HIDDEN, create, sync_folder, write_all

READ_BYTES = 1 << 20  # memory for checking a file of any size


class ChecksummedRange(NamedTuple):
    """A range of a file with its own checksum."""

    offset: int
    nbytes: int
    sha256: str


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> list[ChecksummedRange]:
    """Write a new file from chunks of bytes, one at a time, and sync it; return the range and checksum of each chunk.
    """
    pieces: list[ChecksummedRange] = []
    file = create(path)
    try:
        offset = 0
        for chunk in chunks:
            nbytes = memoryview(chunk).nbytes
            pieces.append(ChecksummedRange(offset, nbytes, sha256(chunk).hexdigest()))
            offset += nbytes
            write_all(file, chunk)
            del chunk  # free it before the next one is made
        os.fsync(file)
    finally:
        os.close(file)
    return pieces


def first_difference(file: BinaryIO, piece: ChecksummedRange) -> str:
    """Return a description of the damage in a range of a file; "" if its checksum agrees."""
    digest, rest = sha256(), piece.nbytes
    file.seek(piece.offset)
    while rest:
        chunk = file.read(min(rest, READ_BYTES))
        if not chunk:
            return f"the file ends {rest} bytes early"
        digest.update(chunk)
        rest -= len(chunk)
    return "" if digest.hexdigest() == piece.sha256 else "the checksum does not agree"


def publish_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder with the files that ``fill`` writes; it replaces a folder of the same name."""
    hidden = path.with_name(HIDDEN + path.name)
    remove_folder(hidden)
    try:
        os.mkdir(hidden)
        fill(hidden)
        sync_folder(hidden)
        remove_folder(path)
        os.rename(hidden, path)
    except BaseException:
        with suppress(OSError):
            remove_folder(hidden)
        raise
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder and its files, if it exists.
    It is renamed first, so that its name never has only some of the files."""
    if not path.exists():
        return
    if not path.name.startswith(HIDDEN):
        gone = path.with_name(f"{HIDDEN}{path.name}.old")
        remove_folder(gone)
        os.rename(path, gone)
        path = gone
    for name in os.listdir(path):
        os.unlink(path / name)
    os.rmdir(path)
