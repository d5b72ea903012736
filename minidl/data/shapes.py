"""Discs and boxes on noise, with masks: a synthetic data set for networks that label pixels.

An image's number alone determines the image.
"""

from collections.abc import Generator, Iterator

import numpy as np

from minidl.data.batch import Batch
from minidl.data.dataset import ImageSet, in_order, once
from minidl.errors import UserError

TRAIN, TEST = 1000, 200  # images
LEAST_SIDE = 16
SHAPES = 4  # in an image, at most
NOISE = 0.3  # standard deviation; shapes are 1 brighter or darker than the background
DATA_SEED = 2015


class Shapes(ImageSet):
    """Drawings of discs and boxes: 1,000 training and 200 test images, [1, image_size, image_size], with masks.

    Shapes in front hide those behind. Discs and boxes have the same brightness: only the outline distinguishes them.
    Raises UserError for a size below 16.
    """

    num_classes = 3
    class_names: tuple[str, ...] = ("ground", "disc", "box")
    train_size, test_size = TRAIN, TEST

    def __init__(self, image_size: int = 64) -> None:
        if image_size < LEAST_SIDE:
            raise UserError(f"--image-size must be at least {LEAST_SIDE} for shapes, not {image_size}")
        self.input_shape = (1, image_size, image_size)
        self.label_shape = (image_size, image_size)

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[Batch, None, None]:
        """Yield training batches without end, as ``Data.batches`` describes."""
        return (self._batch(chosen.examples) for chosen in in_order(TRAIN, batch, seed=seed, skip=skip))

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """Yield every test image once; the last batch may be smaller."""
        return (self._batch(TRAIN + chosen.examples) for chosen in once(TEST, batch))

    def _batch(self, numbers: np.ndarray) -> Batch:
        images = np.empty((len(numbers), *self.input_shape), np.float32)
        labels = np.empty((len(numbers), *self.label_shape), np.int64)
        for row, number in enumerate(numbers):
            images[row, 0], labels[row] = _draw(int(number), self.input_shape[1])
        return Batch(len(numbers), self.input_shape, images, labels, self.label_shape)


def _draw(number: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw image number ``number`` and its mask; return both, [side, side] each."""
    random = np.random.default_rng([DATA_SEED, number])
    rows, columns = np.mgrid[:side, :side]
    light, mask = np.zeros((side, side)), np.zeros((side, side), np.int64)
    for _ in range(random.integers(1, SHAPES + 1)):
        radius = random.uniform(side / 8, side / 4)
        y, x = random.uniform(radius, side - radius, 2)  # it is entirely inside the image
        kind = int(random.integers(1, 3))
        if kind == 1:
            inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        else:
            inside = (abs(rows - y) < radius) & (abs(columns - x) < radius)
        light[inside], mask[inside] = random.choice([-1.0, 1.0]), kind
    return light + NOISE * random.standard_normal((side, side)), mask
