"""Images of noise with random labels, for studies of memory and time. A network can only memorise them."""

from collections.abc import Generator, Iterator

import numpy as np

from minidl.data.batch import Batch, ImageShape
from minidl.data.feed import Feed


class Synthetic:
    """The data set of one random batch, repeated without end.

    values: False: batches have shapes only, for devices without values. label_shape: (H, W) for one label per pixel.
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
