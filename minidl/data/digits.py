"""The handwritten digits of scikit-learn: 1,797 images of 8x8 pixels, with a fixed split into training and test.

Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998: its test part.
scikit-learn is imported only when the data is read.
"""

from collections.abc import Generator, Iterator

import numpy as np

from minidl.data.batch import Batch
from minidl.data.dataset import SPLIT_SEED, ImageSet, in_order, once
from minidl.errors import UserError

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
