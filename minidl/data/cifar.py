"""CIFAR-10 in its authors' binary format: 50,000 training images of 32x32 pixels, 10,000 test images.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. ``data_batch_*.bin`` and ``test_batch.bin``
hold records of 3,073 bytes: a class, then 1,024 pixels of red, of green and of blue. ``batches.meta.txt`` names the
classes. The files are memory-mapped. Each training image is shifted by up to 4 pixels and mirrored half of the time
(section 4.2 of He et al., CVPR 2016).
"""

import fnmatch
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np

from minidl.data.batch import Batch, ImageShape
from minidl.data.dataset import Chosen, ImageSet, in_order, once
from minidl.data.source import BadFile, BadFiles, as_bad_file
from minidl.errors import UserError
from minidl.outside.reading import Unreadable, is_there, names_in, open_file, read_text

SIDE, CHANNELS, CLASSES = 32, 3, 10
RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE
TRAIN, TEST, NAMES = "data_batch_*.bin", "test_batch.bin", "batches.meta.txt"
MOST_NAMES_BYTES = 1 << 16
SHIFT = 4  # pixels
# Mean and deviation of the training images, scaled to 0 to 1: red, green, blue.
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)[:, None, None]
DEVIATION = np.array([0.2470, 0.2435, 0.2616], np.float32)[:, None, None]


class Cifar10(ImageSet):
    """The data set CIFAR-10 in a folder of its binary files. Raises UserError if the folder has no training images.

    A file of a wrong length, or a record of an unknown class, raises BadFile or, if bad files are skipped, is left out.
    """

    input_shape: ImageShape = (CHANNELS, SIDE, SIDE)
    num_classes = CLASSES

    def __init__(self, root: Path, bad: BadFiles) -> None:
        self.class_names = _names(root / NAMES)
        self._train = _records([root / name for name in fnmatch.filter(names_in(root), TRAIN)], bad)
        self._test = _records([root / TEST] if is_there(root / TEST) else [], bad)
        if not len(self._train[1]):
            raise UserError(f"{root}: it has no CIFAR-10 records to train on")
        self.train_size, self.test_size = len(self._train[1]), len(self._test[1])

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[Batch, None, None]:
        """Yield training batches without end, shifted and mirrored at random; arguments as in ``Data.batches``."""
        for chosen in in_order(self.train_size, batch, seed=seed, skip=skip):
            random = np.random.default_rng([seed, chosen.epoch, int(chosen.examples[0])])
            images, labels = _images_of(self._train, chosen)
            yield Batch(batch, self.input_shape, _normalised(_moved(images, random)), labels)

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """Yield every test image once, unchanged; the last batch may be smaller."""
        for chosen in once(self.test_size, batch):
            images, labels = _images_of(self._test, chosen)
            yield Batch(len(labels), self.input_shape, _normalised(images), labels)


_Records = tuple[list[np.ndarray], np.ndarray]  # mapped files [records, 3073]; and (file, record) of each image, [N, 2]


def _records(paths: list[Path], bad: BadFiles) -> _Records:
    files: list[np.ndarray] = []
    places = [np.empty((0, 2), np.int64)]
    for path in paths:
        try:
            with as_bad_file(path), open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                if not size or size % RECORD_BYTES:
                    raise BadFile(str(path), f"{size} bytes, not a multiple of a record's {RECORD_BYTES}")
                mapped = np.memmap(file, np.uint8, "r").reshape(-1, RECORD_BYTES)
        except BadFile as error:
            bad.note(error)
            continue
        wrong = mapped[:, 0] >= CLASSES
        for record in np.flatnonzero(wrong):
            bad.note(BadFile(f"{path}:record {record}", f"class {mapped[record, 0]}, but there are only {CLASSES}"))
        whole = np.flatnonzero(~wrong)
        places.append(np.stack([np.full_like(whole, len(files)), whole], axis=1))
        files.append(mapped)
    return files, np.concatenate(places)


def _images_of(records: _Records, chosen: Chosen) -> tuple[np.ndarray, np.ndarray]:
    """Return the chosen images [N, 3, 32, 32], uint8, and their labels [N], int64."""
    files, places = records
    taken = np.stack([files[file][record] for file, record in places[chosen.examples]])
    return taken[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), taken[:, 0].astype(np.int64)


def _moved(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the images, each shifted at random by up to 4 pixels, with black borders, and mirrored half of the time.
    """
    framed = np.pad(images, ((0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
    tops, lefts = random.integers(2 * SHIFT + 1, size=(2, len(images)))
    mirrored = random.random(len(images)) < 0.5
    moved = np.stack([image[:, top:top + SIDE, left:left + SIDE]
                      for image, top, left in zip(framed, tops, lefts, strict=True)])
    moved[mirrored] = moved[mirrored][..., ::-1]
    return moved


def _normalised(images: np.ndarray) -> np.ndarray:
    return (images.astype(np.float32) / 255 - MEAN) / DEVIATION


def _names(path: Path) -> tuple[str, ...]:
    """Return the names of the ten classes from a file, or their numbers if the file is missing or has fewer names."""
    try:
        names = read_text(path, most=MOST_NAMES_BYTES).split()[:CLASSES]
    except Unreadable:
        names = []
    return tuple(names) if len(names) == CLASSES else tuple(map(str, range(CLASSES)))
