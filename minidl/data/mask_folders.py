"""Images and their masks in two folders, by the same names: what a network that labels pixels learns from."""

from pathlib import Path

import numpy as np

from minidl.data.source import BadFile, BadFiles, is_image, read_image
from minidl.errors import UserError
from minidl.reading import is_folder, names_in

IMAGES, MASKS = "images", "masks"
_MASK_ENDINGS = ("", "_mask")  # of the mask's stem: Carvana's masks are called so


class MaskFolders:
    """``root/images/<name>.*`` with ``root/masks/<name>.*`` (or ``<name>_mask.*``), in the order of names; a Source.

    An image without a mask is a bad file. Raises UserError for that, and for a folder that holds none.
    """

    class_names: tuple[str, ...] = ()
    labels: np.ndarray | None = None

    def __init__(self, root: Path, bad: BadFiles) -> None:
        masks = {path.stem: path for path in _images(root / MASKS)}
        self._pairs: list[tuple[Path, Path]] = []
        for image in _images(root / IMAGES):
            mask = next((masks[image.stem + ending] for ending in _MASK_ENDINGS if image.stem + ending in masks), None)
            if mask is None:
                bad.note(BadFile(str(image), f"there is no mask {image.stem} in {root / MASKS}"))
            else:
                self._pairs.append((image, mask))
        if not self._pairs:
            raise UserError(f"{root / IMAGES}: there are no images with masks in it")

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


def _images(folder: Path) -> list[Path]:
    if not is_folder(folder):
        raise UserError(f"{folder}: there is no such folder")
    return [folder / name for name in names_in(folder) if is_image(name)]
