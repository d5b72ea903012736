"""The interface of a data set, and the order of its examples. Knows no format, no model, no device.

The order is a permutation for each epoch that follows from the seed alone. Anything random about an example (its crop,
its mask) follows from the seed, the epoch and the example's number. So neither the number of threads nor the step at
which a run continues changes any batch.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

from minidl.data.batch import AnyBatch, Batch, ImageShape
from minidl.data.feed import Feed

HELD_OUT = 0.1  # share of a data set without test examples that becomes the test part
SPLIT_SEED = 1998  # a split belongs to its data set: it does not depend on the seed of a run


class Data(Protocol):
    """A data set.

    input_shape    (C, H, W) of an image, (tokens,) of a text
    label_shape    of one example's labels: () or (H, W)
    num_classes    0 if there are none
    class_names    the classes' names, if the data has any
    real           False for random noise
    feed           statistics of the threads that make batches; None if there are none
    """

    input_shape: ImageShape
    label_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...]
    real: bool
    feed: Feed | None

    @property
    def train_size(self) -> int | None:
        """The number of training examples; None: endless."""

    @property
    def described(self) -> str:
        """The size of the data set, as text."""

    def shapes(self, batch: int) -> AnyBatch:
        """Return a batch of that many examples, without values."""

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[AnyBatch, None, None]:
        """Yield batches without end, epoch after epoch, without the first ``skip`` ones; each epoch has its own order.

        An incomplete last batch of an epoch is left out, so that every step has the same shapes.
        """

    def test_batches(self, batch: int) -> Iterator[AnyBatch]:
        """Yield every test example once; the last batch may be smaller."""


class ImageSet:
    """The common part of data sets with a known number of images; the rest is in Data."""

    input_shape: ImageShape
    label_shape: tuple[int, ...] = ()
    num_classes: int
    class_names: tuple[str, ...] = ()
    train_size: int
    test_size: int
    real = True
    feed: Feed | None = None

    @property
    def described(self) -> str:
        """The size of the data set, as text."""
        return (f"{self.train_size} images to train on, {self.test_size} to test with, {self.num_classes} classes"
                + (" per pixel" if self.label_shape else ""))

    def shapes(self, batch: int) -> Batch:
        """Return a batch of that many examples, without values."""
        return Batch(batch, self.input_shape, label_shape=self.label_shape)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The examples of a batch: their numbers [N], and the epoch (test examples: -1)."""

    epoch: int
    examples: np.ndarray


def in_order(size: int, batch: int, *, seed: int, skip: int) -> Iterator[Chosen]:
    """Yield the batches of ``size`` examples, without end. ``batch`` must be at most ``size``."""
    first_epoch, first = divmod(skip, size // batch)
    for epoch in count(first_epoch):
        order = np.random.default_rng([seed, epoch]).permutation(size)
        for start in range(first * batch if epoch == first_epoch else 0, size - batch + 1, batch):
            yield Chosen(epoch, order[start:start + batch])


def once(size: int, batch: int) -> Iterator[Chosen]:
    """Yield every example once, in the order of the data set."""
    for start in range(0, size, batch):
        yield Chosen(-1, np.arange(start, min(start + batch, size)))


def held_out(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (training examples, test examples), each ascending: always the same ones for a size."""
    order = np.random.default_rng(SPLIT_SEED).permutation(size)
    test = int(HELD_OUT * size)
    return np.sort(order[test:]), np.sort(order[:test])
