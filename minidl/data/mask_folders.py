"""Images and masks in two folders, matched by name, for networks that label pixels."""

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
_MASK_ENDINGS = ("", "_mask")  # of the mask's stem; Carvana's masks end in _mask


class MaskFolders:
    """Images ``root/images/<name>.*`` with masks ``root/masks/<name>.*`` or ``<name>_mask.*``: an ``ImageSource``.

    Bad files are an image without a mask, a mask without an image, a second file of one name, a folder among the
    files, and an image outside the two folders. Raises UserError for bad files, and for folders without images.
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
    """Return the images in a folder by their stem (the name before the suffix), sorted by name."""
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
