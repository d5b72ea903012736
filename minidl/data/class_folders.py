"""Images in a folder for each class, as torchvision and timm lay them out. Knows names; decodes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from minidl.data.source import (
    BadFile,
    BadFiles,
    as_bad_file,
    is_image,
    note_images_beside,
    read_image,
    refuse_unread,
)
from minidl.errors import UserError
from minidl.outside.reading import is_folder, is_there, names_in


class ClassFolders:
    """``root/<class>/**/<image>``: classes and images in the order of their names; a Source.

    class_names  of another folder of the same data (validation images): its classes must be these. An empty class is a
    bad file, and so is an image beside the classes. Raises UserError, with its name, for that, for another class, and
    for a folder without classes.
    """

    def __init__(self, root: Path, bad: BadFiles, *, class_names: tuple[str, ...] | None = None) -> None:
        found = tuple(_classes(root, bad))
        if not found:
            raise UserError(f"{root}: there are no folders of images, one a class, in it")
        note_images_beside(root, "the folders of classes", bad)
        self.class_names = found if class_names is None else class_names
        for name in sorted(set(found) ^ set(self.class_names)):
            raise UserError(f"{root / name}: {'not among what is trained on' if name in found else 'not there'}; both "
                            "parts of the data must have the same classes")
        self._paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            images = _images(root / name, bad)
            if not images:
                bad.note(BadFile(str(root / name), "a class without images"))
            self._paths += images
            labels += [label] * len(images)
        self.labels: np.ndarray | None = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, example: int) -> str:
        """The path of an image."""
        return str(self._paths[example])

    def image(self, example: int) -> bytes:
        """The bytes of an image's file. Raises BadFile."""
        return read_image(self._paths[example])

    def mask(self, example: int) -> bytes:
        """Never asked for: these images have classes."""
        raise AssertionError("folders of classes have no masks")


def _classes(root: Path, bad: BadFiles) -> Iterator[str]:
    """The folders in a folder. A link that leads nowhere might have been one: it is a bad file."""
    for name in names_in(root):
        if name.startswith("."):
            continue
        try:
            with as_bad_file(root / name):
                if is_folder(root / name):
                    yield name
                elif not is_there(root / name):
                    raise BadFile(str(root / name), "a link that leads nowhere")
        except BadFile as error:
            bad.note(error)


def _images(folder: Path, bad: BadFiles) -> list[Path]:
    """All below the folder of a class, in the order of their paths. Links are followed.

    A folder that cannot be read is a bad file, and so is a link that leads nowhere, or to a folder that it lies in,
    which would have no end.
    """
    found: list[Path] = []
    waiting = [(folder, frozenset({_identity(folder.parent)}))]
    while waiting:
        place, above = waiting.pop()
        try:
            with as_bad_file(place):
                key, entries = _identity(place), list(os.scandir(place))
            if key in above:
                raise BadFile(str(place), "a link to a folder that it lies in")
        except BadFile as error:
            bad.note(error)
            continue
        for entry in entries:
            path = place / entry.name
            try:
                with as_bad_file(path):  # where a link leads may be closed
                    if entry.is_dir():
                        waiting.append((path, above | {key}))
                    elif is_image(entry.name):
                        found.append(path)
                    elif entry.is_symlink() and not is_there(path):
                        raise BadFile(str(path), "a link that leads nowhere")
                    else:
                        refuse_unread(path)
            except BadFile as error:
                bad.note(error)
    return sorted(found)


def _identity(folder: Path) -> tuple[int, int]:
    """The identity of a folder, which does not depend on its name."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino
