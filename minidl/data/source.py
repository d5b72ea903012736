"""Where encoded images and their labels come from, one at a time, and what becomes of broken ones. Decodes nothing."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np

from minidl.errors import UserError
from minidl.outside.reading import Unreadable, descriptor, names_in, reading

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".pbm", ".pnm")
UNREAD_SUFFIXES = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".tga", ".pfm")  # images, too
MOST_FILE_BYTES = 256 << 20  # of one image: what is longer is not read
MOST_CLASSES = 100_000  # a larger label is a mistake, and no reason to make a network with as many outputs


class BadFile(UserError):
    """A file, or a part of one, that cannot be used: ``name`` says which, the message also why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


@contextmanager
def as_bad_file(path: Path) -> Iterator[None]:
    """Whatever refuses to be read within is a BadFile of this name."""
    try:
        with reading(path):
            yield
    except Unreadable as error:
        raise BadFile(str(error.path), error.why) from None


class BadFiles:
    """The handling of broken files: the first ends the run, or all are left out, counted, and named at the end."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self._found: dict[str, str] = {}
        self._lock = Lock()

    def note(self, error: BadFile) -> None:
        """Count a broken file if they are skipped; else raise the error."""
        if not self.skip:
            raise error
        with self._lock:
            self._found.setdefault(error.name, str(error))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __len__(self) -> int:
        return len(self._found)

    @property
    def messages(self) -> list[str]:
        """A message for each file, in the order of their names, as threads find them in any.

        What is no text in a name is shown as bytes.
        """
        return [self._found[name].encode(errors="backslashreplace").decode() for name in sorted(self._found)]


class Source(Protocol):
    """Encoded images with labels, by number. May be asked by several threads at once.

    class_names   () if they have none
    labels        [N], a class an image; None where each has a mask
    """

    class_names: tuple[str, ...]
    labels: np.ndarray | None

    def __len__(self) -> int: ...

    def name(self, example: int) -> str:
        """The file that an image is in, and which part of it, for people."""

    def image(self, example: int) -> bytes:
        """The bytes of an encoded image. Raises BadFile."""

    def mask(self, example: int) -> bytes:
        """The bytes of its mask, an encoded image of classes. Raises BadFile."""


class Descriptor:
    """An open file, read at any place by any thread; closed with its last reference."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nbytes = os.fstat(number).st_size

    @classmethod
    def open(cls, path: Path) -> "Descriptor":
        """Open a file to read. Raises BadFile if it is none that could be read at once."""
        with as_bad_file(path):
            return cls(descriptor(path))

    def read(self, nbytes: int, offset: int) -> bytes:
        """That many bytes from an offset; fewer at the end of the file, none behind it."""
        return os.pread(self.number, max(0, min(nbytes, self.nbytes - offset)), offset)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of an open file: one encoded image. ``name`` for people."""

    file: Descriptor
    offset: int
    nbytes: int
    name: str


class Packed:
    """Images that lie inside of larger files, which stay open: a Source."""

    def __init__(self, extents: Sequence[Extent], labels: Sequence[int]) -> None:
        self.class_names: tuple[str, ...] = ()
        self.labels: np.ndarray | None = np.array(labels, np.int64)
        self._extents = extents

    def __len__(self) -> int:
        return len(self._extents)

    def name(self, example: int) -> str:
        """The file that an image lies in, and what it is called there."""
        return self._extents[example].name

    def image(self, example: int) -> bytes:
        """The bytes of an image. Raises BadFile if the file has become shorter."""
        extent = self._extents[example]
        with as_bad_file(Path(extent.name)):
            data = extent.file.read(extent.nbytes, extent.offset)
        if len(data) != extent.nbytes:
            raise BadFile(extent.name, f"only {len(data)} of its {extent.nbytes} bytes are there")
        return data

    def mask(self, example: int) -> bytes:
        """Never asked for: these images have classes."""
        raise AssertionError("packed images have classes, not masks")


def read_image(path: Path) -> bytes:
    """The bytes of a file. Raises BadFile if there are none or too many, or if it is none that can be read at once."""
    file = Descriptor.open(path)
    if not 0 < file.nbytes <= MOST_FILE_BYTES:
        raise BadFile(str(path), f"{file.nbytes} bytes, and an image has 1 to {MOST_FILE_BYTES}")
    with as_bad_file(path):
        return file.read(file.nbytes, 0)


def is_image(name: str) -> bool:
    """True if a file is an image that is read, by its suffix; hidden files are none."""
    return _ends_like(name, IMAGE_SUFFIXES)


def refuse_unread(path: Path) -> None:
    """Raises BadFile for an image of a kind that is not read, by its suffix."""
    if _ends_like(path.name, UNREAD_SUFFIXES):
        raise BadFile(str(path), f"an image of a kind that is not read ({', '.join(IMAGE_SUFFIXES)} are)")


def note_images_beside(folder: Path, what: str, bad: BadFiles) -> None:
    """Report images beside the part of a folder that is read as bad files: otherwise their loss would go unnoticed."""
    for name in names_in(folder):
        if _ends_like(name, IMAGE_SUFFIXES + UNREAD_SUFFIXES):
            bad.note(BadFile(str(folder / name), f"an image beside {what}, where none is looked for"))


def _ends_like(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes) and not name.startswith(".")
