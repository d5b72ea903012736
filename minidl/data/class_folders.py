"""Images in a folder for each class, as torchvision and timm lay them out. Knows names; decodes nothing."""

import os
from pathlib import Path

import numpy as np

from minidl.data.source import BadFile, BadFiles, is_image, read_image
from minidl.errors import UserError


class ClassFolders:
    """``root/<class>/**/<image>``: classes and images in the order of their names; a Source.

    class_names  of another folder of the same data (validation images): its classes must be these. An empty class is a
    bad file. Raises UserError, with its name, for that, for another class, and for a folder without classes.
    """

    def __init__(self, root: Path, bad: BadFiles, *, class_names: tuple[str, ...] | None = None) -> None:
        found = tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not _hidden(entry.name)))
        if not found:
            raise UserError(f"{root}: there are no folders of images, one a class, in it")
        self.class_names = found if class_names is None else class_names
        for name in sorted(set(found) ^ set(self.class_names)):
            raise UserError(f"{root / name}: {'not among what is trained on' if name in found else 'not there'}; both "
                            "parts of the data must have the same classes")
        self._paths: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.class_names):
            images = list(_images(root / name))
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


def _images(folder: Path) -> list[Path]:
    """All below it, in the order of their paths."""
    return sorted(Path(base, name) for base, _, names in os.walk(folder) for name in names if is_image(name))


def _hidden(name: str) -> bool:
    return name.startswith(".")
