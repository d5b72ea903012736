"""Sources of encoded images and labels, one at a time, and the handling of broken ones. Images are decoded elsewhere.
"""

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
UNREAD_SUFFIXES = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".tga", ".pfm")  # unsupported images
MOST_FILE_BYTES = 256 << 20  # of one image; a longer one is refused
MOST_CLASSES = 100_000  # a larger label is a mistake; it must not make a network with as many outputs


class BadFile(UserError):
    """The error for a broken file of a data set, or a part of one. name: the file, and the part; why: the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


@contextmanager
def as_bad_file(path: Path) -> Iterator[None]:
    """Return a context that turns every error of reading a file inside it into a BadFile."""
    try:
        with reading(path):
            yield
    except Unreadable as error:
        raise BadFile(str(error.path), error.why) from None


class BadFiles:
    """Decides about broken files: the first one ends the run or, with ``skip``, all are left out, counted and named."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self._found: dict[str, str] = {}
        self._lock = Lock()

    def note(self, error: BadFile) -> None:
        """Count a broken file if broken files are skipped; else raise ``error``."""
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
        """One message for each broken file, sorted by file name, because threads find the files in any order.

        Bytes of a name that are not text are escaped.
        """
        return [self._found[name].encode(errors="backslashreplace").decode() for name in sorted(self._found)]


class ImageSource(Protocol):
    """The interface of encoded images with labels, numbered from 0. Several threads may call it at once.

    class_names   names of the classes; () if there are none
    labels        [N], one class per image; None if each image has a mask
    """

    class_names: tuple[str, ...]
    labels: np.ndarray | None

    def __len__(self) -> int: ...

    def name(self, example: int) -> str:
        """Return the file that has image number ``example``, with the part of the file, as text for messages."""

    def image(self, example: int) -> bytes:
        """Return the bytes of image number ``example``, encoded as in its file. Raises BadFile if it is unreadable."""

    def mask(self, example: int) -> bytes:
        """Return the bytes of this image's mask, an encoded image of classes. Raises BadFile if they cannot be read."""


class Descriptor:
    """An open file that any thread may read at any offset. It is closed when no reference to this object is left."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.nbytes = os.fstat(number).st_size

    @classmethod
    def open(cls, path: Path) -> "Descriptor":
        """Open a file for reading. Raises BadFile if it cannot be read, or is a pipe."""
        with as_bad_file(path):
            return cls(descriptor(path))

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return ``nbytes`` bytes from an offset; fewer at the end of the file, none beyond it."""
        return os.pread(self.number, max(0, min(nbytes, self.nbytes - offset)), offset)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of one encoded image in an open file: ``nbytes`` from ``offset`` on. ``name`` is for messages."""

    file: Descriptor
    offset: int
    nbytes: int
    name: str


class Packed:
    """Images inside larger files, such as tar files, which stay open: an ``ImageSource``."""

    def __init__(self, extents: Sequence[Extent], labels: Sequence[int]) -> None:
        self.class_names: tuple[str, ...] = ()
        self.labels: np.ndarray | None = np.array(labels, np.int64)
        self._extents = extents

    def __len__(self) -> int:
        return len(self._extents)

    def name(self, example: int) -> str:
        """Return the file that image number ``example`` is in, and the image's name there."""
        return self._extents[example].name

    def image(self, example: int) -> bytes:
        """Return the bytes of image number ``example``. Raises BadFile if the file has become shorter."""
        extent = self._extents[example]
        with as_bad_file(Path(extent.name)):
            data = extent.file.read(extent.nbytes, extent.offset)
        if len(data) != extent.nbytes:
            raise BadFile(extent.name, f"only {len(data)} of its {extent.nbytes} bytes exist")
        return data

    def mask(self, example: int) -> bytes:
        """Raise AssertionError: these images have one class each, and no masks."""
        raise AssertionError("packed images have classes, not masks")


def read_image(path: Path) -> bytes:
    """Return the bytes of an image file. Raises BadFile if the file is empty, too long, or cannot be read."""
    file = Descriptor.open(path)
    if not 0 < file.nbytes <= MOST_FILE_BYTES:
        raise BadFile(str(path), f"{file.nbytes} bytes; an image must have 1 to {MOST_FILE_BYTES}")
    with as_bad_file(path):
        return file.read(file.nbytes, 0)


def is_image(name: str) -> bool:
    """Return True if a file's name has the suffix of a supported image format and is not hidden."""
    return _ends_like(name, IMAGE_SUFFIXES)


def refuse_unread(path: Path) -> None:
    """Raise BadFile if a file's name has the suffix of an image format that is not supported."""
    if _ends_like(path.name, UNREAD_SUFFIXES):
        raise BadFile(str(path), f"an image of an unsupported kind; supported are {', '.join(IMAGE_SUFFIXES)}")


def note_images_beside(folder: Path, what: str, bad: BadFiles) -> None:
    """Report image files directly in ``folder`` as bad files, because the format reads only ``what`` there (a text)."""
    for name in names_in(folder):
        if _ends_like(name, IMAGE_SUFFIXES + UNREAD_SUFFIXES):
            bad.note(BadFile(str(folder / name), f"an image beside {what}, where images are not read"))


def _ends_like(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes) and not name.startswith(".")
