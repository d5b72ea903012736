"""Images in folders: one per class, as torchvision and timm arrange them; or images and masks, matched by name.

A source lists files and decodes none.
"""

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
    """The images in ``root/<class>/**/<image>``, classes and images sorted by name: an ``ImageSource``.

    class_names: for test images, the classes of the training images, since both must have the same classes. An empty
    class, an image outside the classes and one of an unsupported format are bad files. Raises UserError, with the
    name, for bad files (unless they are skipped), for other classes, and for a folder without classes.
    """

    def __init__(self, root: Path, bad: BadFiles, *, class_names: tuple[str, ...] | None = None) -> None:
        found = tuple(_classes(root, bad))
        if not found:
            raise UserError(f"{root}: it has no folders of images, one per class")
        note_images_beside(root, "the folders of classes", bad)
        self.class_names = found if class_names is None else class_names
        for name in sorted(set(found) ^ set(self.class_names)):
            raise UserError(f"{root / name}: {'not a class to train on' if name in found else 'missing'}; both "
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
        """Return the path of image number ``example``."""
        return str(self._paths[example])

    def image(self, example: int) -> bytes:
        """Return the bytes of the file of image number ``example``. Raises BadFile if it cannot be read."""
        return read_image(self._paths[example])

    def mask(self, example: int) -> bytes:
        """Raise AssertionError: these images have one class each, and no masks."""
        raise AssertionError("folders of classes have no masks")


def _classes(root: Path, bad: BadFiles) -> Iterator[str]:
    """Yield the names of the folders in ``root``, except hidden ones. A dangling link is a bad file."""
    for name in names_in(root):
        if name.startswith("."):
            continue
        try:
            with as_bad_file(root / name):
                if is_folder(root / name):
                    yield name
                elif not is_there(root / name):
                    raise BadFile(str(root / name), "a dangling link")
        except BadFile as error:
            bad.note(error)


def _images(folder: Path, bad: BadFiles) -> list[Path]:
    """Return all images below the folder of a class, sorted by path. Links are followed.

    Bad files are an image of an unsupported format, a folder that cannot be read, a dangling link, and a link to a
    folder that contains the link, which would be an endless loop.
    """
    found: list[Path] = []
    waiting = [(folder, frozenset({_identity(folder.parent)}))]
    while waiting:
        place, above = waiting.pop()
        try:
            with as_bad_file(place):
                key, entries = _identity(place), list(os.scandir(place))
            if key in above:
                raise BadFile(str(place), "a link to a folder that contains it")
        except BadFile as error:
            bad.note(error)
            continue
        for entry in entries:
            path = place / entry.name
            try:
                with as_bad_file(path):  # the target of a link may be unreadable
                    if entry.is_dir():
                        waiting.append((path, above | {key}))
                    elif is_image(entry.name):
                        found.append(path)
                    elif entry.is_symlink() and not is_there(path):
                        raise BadFile(str(path), "a dangling link")
                    else:
                        refuse_unread(path)
            except BadFile as error:
                bad.note(error)
    return sorted(found)


def _identity(folder: Path) -> tuple[int, int]:
    """Return (device, inode) of a folder, which do not depend on its name."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


IMAGES, MASKS = "images", "masks"
_MASK_ENDINGS = ("", "_mask")  # of the mask's stem; Carvana's masks end in _mask


class MaskFolders:
    """Images ``root/images/<name>.*`` with masks ``root/masks/<name>.*`` or ``<name>_mask.*``: an ``ImageSource``.

    Bad files are an image without a mask, a mask without an image, a second file of one name, an unsupported format,
    a folder among the files, and an image directly in ``root``. Raises UserError for bad files, unless they are
    skipped, and if no image has a mask.
    """

    class_names: tuple[str, ...] = ()
    labels: np.ndarray | None = None

    def __init__(self, root: Path, bad: BadFiles) -> None:
        note_images_beside(root, f"{IMAGES} and {MASKS}", bad)
        masks = _by_stem(root / MASKS, bad)
        self._pairs: list[tuple[Path, Path]] = []
        for stem, image in _by_stem(root / IMAGES, bad).items():
            named = next((stem + ending for ending in _MASK_ENDINGS if stem + ending in masks), None)
            if named is None:
                bad.note(BadFile(str(image), f"it has no mask {stem} in {root / MASKS}"))
            else:
                self._pairs.append((image, masks.pop(named)))
        if not self._pairs:
            raise UserError(f"{root / IMAGES}: it has no images with masks")
        for mask in masks.values():
            bad.note(BadFile(str(mask), f"a mask without an image in {root / IMAGES}"))

    def __len__(self) -> int:
        return len(self._pairs)

    def name(self, example: int) -> str:
        """Return the path of image number ``example``, which messages also use for the image's mask."""
        return str(self._pairs[example][0])

    def image(self, example: int) -> bytes:
        """Return the bytes of the file of image number ``example``. Raises BadFile if it cannot be read."""
        return read_image(self._pairs[example][0])

    def mask(self, example: int) -> bytes:
        """Return the bytes of the mask file of image number ``example``. Raises BadFile if it cannot be read."""
        return read_image(self._pairs[example][1])


def _by_stem(folder: Path, bad: BadFiles) -> dict[str, Path]:
    """Return the images in a folder by their stem (the name before the suffix), sorted by name; others are bad files.
    Raises UserError if there is no such folder."""
    if not is_folder(folder):
        raise UserError(f"{folder}: the folder does not exist")
    found: dict[str, Path] = {}
    for name in names_in(folder):
        path = folder / name
        try:
            if is_image(name):
                if path.stem in found:
                    raise BadFile(str(path), f"{found[path.stem].name} has the same name before its suffix")
                found[path.stem] = path
                continue
            refuse_unread(path)
            with as_bad_file(path):
                if not name.startswith(".") and is_folder(path):
                    raise BadFile(str(path), "a folder among images with masks is not searched")
        except BadFile as error:
            bad.note(error)
    return found
