"""Images of noise with random labels, to study memory and time. Nothing can be learnt from them but by heart."""

from collections.abc import Iterator

import numpy as np

from minidl.data.batch import Batch, ImageShape


class Synthetic:
    """One batch, again and again; ``values`` False leaves out the numbers, for devices that have none."""

    def __init__(self, input_shape: ImageShape, num_classes: int, *, values: bool = True) -> None:
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.values = values

    @property
    def train_size(self) -> None:
        """There is no end to it."""

    def batches(self, batch: int, *, seed: int = 0) -> Iterator[Batch]:
        """The same batch without end; the seed decides its values."""
        data = Batch(batch, self.input_shape)
        if self.values:
            random = np.random.default_rng(seed)
            data = Batch(batch, self.input_shape, random.standard_normal((batch, *self.input_shape), np.float32),
                         random.integers(self.num_classes, size=batch))
        while True:
            yield data

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """None: there is nothing to be right about."""
        return iter(())
