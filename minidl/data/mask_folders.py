"""Images and their masks in two folders, by the same names: what a network that labels pixels learns from."""

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
from minidl.outside.reading import is_folder, names_in

IMAGES, MASKS = "images", "masks"
_MASK_ENDINGS = ("", "_mask")  # of the mask's stem: Carvana's masks are called so


class MaskFolders:
    """``root/images/<name>.*`` with ``root/masks/<name>.*`` (or ``<name>_mask.*``), in the order of names; a Source.

    An image without a mask is a bad file, and so are a mask without an image, a second one of the same name, folders
    among them, and images beside the two. Raises UserError for that, and for a folder that holds none.
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
                bad.note(BadFile(str(image), f"there is no mask {stem} in {root / MASKS}"))
            else:
                self._pairs.append((image, masks.pop(named)))
        if not self._pairs:
            raise UserError(f"{root / IMAGES}: there are no images with masks in it")
        for mask in masks.values():
            bad.note(BadFile(str(mask), f"a mask of no image in {root / IMAGES}"))

    def __len__(self) -> int:
        return len(self._pairs)

    def name(self, example: int) -> str:
        """The path of an image; its mask has none of its own."""
        return str(self._pairs[example][0])

    def image(self, example: int) -> bytes:
        """The bytes of an image's file. Raises BadFile."""
        return read_image(self._pairs[example][0])

    def mask(self, example: int) -> bytes:
        """The bytes of its mask's file. Raises BadFile."""
        return read_image(self._pairs[example][1])


def _by_stem(folder: Path, bad: BadFiles) -> dict[str, Path]:
    """The images in a folder, in the order of their names, by what comes before the suffix."""
    if not is_folder(folder):
        raise UserError(f"{folder}: there is no such folder")
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
                    raise BadFile(str(path), "a folder among images that have masks: it is not looked into")
        except BadFile as error:
            bad.note(error)
    return found
