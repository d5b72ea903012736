"""Images in WebDataset's tar shards: a sample is the members with one name up to the first dot; ``.cls`` is its class.

A shard is indexed once, from its headers; images are then read in place. Every length in a header is checked against
the file. Decodes no image.
"""

import tarfile
from collections.abc import Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

from minidl.data.source import (
    MOST_CLASSES,
    MOST_FILE_BYTES,
    BadFile,
    BadFiles,
    Descriptor,
    Extent,
    Packed,
    as_bad_file,
    is_image,
)
from minidl.errors import UserError

LABEL = "cls"
MOST_LABEL_BYTES = 32
_LONGEST_HEADER = 1 << 20  # bytes of a name, or of extended headers


def read_shards(paths: Sequence[Path], bad: BadFiles) -> Packed:
    """Index all samples of the tar files, in the order of ``paths``; return the samples as one ``ImageSource``.

    Raises BadFile for a damaged file, and for a sample with no image, several images, or no class. If bad files are
    skipped, such a sample is left out, and of a damaged file what follows the damage. Raises UserError if none is left.
    """
    extents: list[Extent] = []
    labels: list[int] = []
    for path in paths:
        try:
            file = Descriptor.open(path)
            for name, members in _samples(_members(path, file)):
                try:
                    with as_bad_file(path):
                        extent, label = _sample(f"{path}:{name}", file, members)
                    extents.append(extent)
                    labels.append(label)
                except BadFile as error:
                    bad.note(error)
        except BadFile as error:
            bad.note(error)
    if not extents:
        raise UserError(f"{paths[0]}: it has no samples with an image and a class")
    return Packed(extents, labels)


def _samples(members: Iterator[tarfile.TarInfo]) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Yield each sample's name and its files: the part of a file's name after the first dot -> the tar member."""
    name, parts = "", dict[str, tarfile.TarInfo]()
    for member in members:
        folder, _, base = member.name.rpartition("/")
        stem, _, ending = base.partition(".")
        key = f"{folder}/{stem}" if folder else stem
        if parts and key != name:
            yield name, parts
            parts = {}
        name = key
        parts[ending.lower()] = member
    if parts:
        yield name, parts


def _sample(name: str, file: Descriptor, members: dict[str, tarfile.TarInfo]) -> tuple[Extent, int]:
    images = [member for ending, member in members.items() if is_image(f"x.{ending}")]
    if len(images) != 1 or LABEL not in members:
        raise BadFile(name, f"a sample is one image and one .{LABEL}, not {', '.join(members) or 'nothing'}")
    label, image = members[LABEL], images[0]
    text = file.read(min(label.size, MOST_LABEL_BYTES), label.offset_data)
    if label.size > MOST_LABEL_BYTES or not text.strip().isdigit() or int(text) >= MOST_CLASSES:
        raise BadFile(name, f"its class is {text!r}, not a whole number from 0 to {MOST_CLASSES - 1}")
    if not 0 < image.size <= MOST_FILE_BYTES:
        raise BadFile(name, f"{image.size} bytes; an image must have 1 to {MOST_FILE_BYTES}")
    return Extent(file, image.offset_data, image.size, name), int(text)


def _members(path: Path, file: Descriptor) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of the regular files in a tar file. Raises BadFile if that is truncated or damaged."""
    size, end = file.nbytes, 0
    try:
        # Only "r:": a compressed shard has no random access.
        with tarfile.open(fileobj=cast(BinaryIO, _Bounded(file)), mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined] # it would keep all, perhaps a million
                if member.offset < end or member.size < 0:
                    raise BadFile(str(path), f"damaged at byte {end}")
                end = member.offset_data + (member.size if member.isreg() else 0)
                if end > size:
                    raise BadFile(str(path), f"truncated: {member.name} should end at byte {end}, but it has {size}")
                if member.isreg():
                    yield member
            # An archive ends with a block of zeros; without it the end is missing.
            if file.read(tarfile.BLOCKSIZE, archive.offset) != bytes(tarfile.BLOCKSIZE):
                raise BadFile(str(path), f"truncated or damaged at byte {archive.offset}")
    except BadFile:
        raise
    except (tarfile.TarError, OSError, ValueError, OverflowError, EOFError, RecursionError, KeyError) as error:
        raise BadFile(str(path), f"not a tar archive, truncated or damaged: {error}") from None


class _Bounded(RawIOBase):
    """A file object for ``tarfile`` with bounded reads: lengths that a damaged archive claims are not allocated."""

    def __init__(self, file: Descriptor) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int = -1) -> Any:
        data = self._file.read(min(size, _LONGEST_HEADER), self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset < 0:
            raise OSError(f"it leads to byte {offset}")
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at
