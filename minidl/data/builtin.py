"""Data sets that need no files.

``synthetic`` is one random batch, for studies of memory and time; a network can only memorise it. ``shapes`` are discs
and boxes on noise, with masks, for networks that label pixels; an image follows from its number and size. ``digits``
are the handwritten digits of scikit-learn: 1,797 images of 8x8 pixels, with a fixed split into training and test
(Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998: its test part).
scikit-learn is imported only when the digits are read.
"""

from collections.abc import Generator, Iterator

import numpy as np

from minidl.data.batch import Batch, ImageShape
from minidl.data.dataset import SPLIT_SEED, ImageSet, in_order, once
from minidl.data.feed import Feed
from minidl.errors import UserError


class Synthetic:
    """The data set of one random batch, repeated without end.

    values: if False, batches have shapes only, for devices without values. label_shape: (H, W) for one label per pixel.
    """

    class_names: tuple[str, ...] = ()
    real = False
    feed: Feed | None = None

    def __init__(self, input_shape: ImageShape, num_classes: int, *, values: bool = True,
                 label_shape: tuple[int, ...] = ()) -> None:
        self.input_shape = input_shape
        self.label_shape = label_shape
        self.num_classes = num_classes
        self.values = values

    @property
    def train_size(self) -> None:
        """None, since the training data has no end."""

    @property
    def described(self) -> str:
        """A text about the data set, for people."""
        return "one batch of noise"

    def shapes(self, batch: int) -> Batch:
        """Return a batch of ``batch`` examples that has shapes, and None in place of arrays."""
        return Batch(batch, self.input_shape, label_shape=self.label_shape)

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[Batch, None, None]:
        """Yield one batch of ``batch`` examples again and again; ``seed`` decides its values, ``skip`` has no effect.
        """
        data = self.shapes(batch)
        if self.values:
            random = np.random.default_rng(seed)
            data = Batch(batch, self.input_shape, random.standard_normal((batch, *self.input_shape), np.float32),
                         random.integers(self.num_classes, size=(batch, *self.label_shape)), self.label_shape)
        while True:
            yield data

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """Yield nothing, since noise has no test examples."""
        return iter(())


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
    """Draw image number ``number`` and its mask of classes; return both, [side, side] each."""
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


SIDE = 8  # pixels
CLASSES = 10
TEST_SHARE = 0.2


class Digits(ImageSet):
    """Scikit-learn's digits: 1,438 training and 359 test images, [1, image_size, image_size], normalised.

    Each pixel becomes a square, as large as ``image_size`` permits; a border of the background's value fills the rest.
    Raises UserError if scikit-learn is missing, or the size is below 8.
    """

    num_classes = CLASSES
    class_names = tuple(map(str, range(CLASSES)))

    def __init__(self, image_size: int = 32) -> None:
        if image_size < SIDE:
            raise UserError(f"the digits have {SIDE}x{SIDE} pixels: --image-size must be at least {SIDE}, "
                            f"not {image_size}")
        self.input_shape = (1, image_size, image_size)
        images, labels = _read()
        order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
        test, train = np.split(order, [int(TEST_SHARE * len(images))])
        mean, deviation = images[train].mean(), images[train].std()
        images = _enlarge((images - mean) / deviation, image_size).astype(np.float32)
        self._train = images[train], labels[train]
        self._test = images[test], labels[test]
        self.train_size, self.test_size = len(train), len(test)

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[Batch, None, None]:
        """Yield training batches without end, as ``Data.batches`` describes."""
        images, labels = self._train
        for chosen in in_order(self.train_size, batch, seed=seed, skip=skip):
            yield Batch(batch, self.input_shape, images[chosen.examples], labels[chosen.examples])

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """Yield every test image once; the last batch may be smaller."""
        images, labels = self._test
        for chosen in once(self.test_size, batch):
            yield Batch(len(chosen.examples), self.input_shape, images[chosen.examples], labels[chosen.examples])


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Return images [1797, 8, 8], values 0 to 16, and labels [1797], int64."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError('the digits need scikit-learn, which is not installed: pip install "minidl[data]"') from None
    data = load_digits()
    return data.images, data.target.astype(np.int64)


def _enlarge(images: np.ndarray, image_size: int) -> np.ndarray:
    """Enlarge images [N, 8, 8] to [N, 1, image_size, image_size], with a border of empty pixels if they do not fit."""
    scale = image_size // SIDE
    large = images.repeat(scale, axis=1).repeat(scale, axis=2)
    before = (image_size - SIDE * scale) // 2
    after = image_size - SIDE * scale - before
    padded = np.pad(large, ((0, 0), (before, after), (before, after)), constant_values=images.min())
    return padded[:, None]
