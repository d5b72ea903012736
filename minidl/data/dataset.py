"""The interface of a data set, and the order of its examples.

The order is a permutation for each epoch that follows from the seed alone. Anything random about an example (its crop,
its mask) follows from the seed, the epoch and the example's number; in CIFAR-10, from its batch's first number and its
place there. So neither the number of threads nor the step at which a run continues changes any batch.
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
    """The interface of a data set, which makes batches of training and test examples.

    input_shape    of one example: (C, H, W) of an image, (tokens,) of a text
    label_shape    of one example's labels: () or (H, W)
    num_classes    number of classes; 0 for text
    class_names    names of the classes; () if the data has none
    real           False for random noise
    feed           the threads that make batches, with statistics; None if there are no such threads
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
        """A text about the size of the data set, for people."""

    def shapes(self, batch: int) -> AnyBatch:
        """Return a batch of ``batch`` examples that has shapes, and None in place of arrays."""

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[AnyBatch, None, None]:
        """Yield training batches of ``batch`` examples without end, except the first ``skip`` ones.

        Each epoch has its own random order, by ``seed``. An incomplete last batch of an epoch is left out.
        """

    def test_batches(self, batch: int) -> Iterator[AnyBatch]:
        """Yield every test example once, in batches of ``batch`` examples; the last batch may be smaller."""


class ImageSet:
    """A base class for data sets with a known number of images; ``Data`` describes its attributes."""

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
        """A text about the size of the data set, for people."""
        return (f"{self.train_size} images to train on, {self.test_size} to test with, {self.num_classes} classes"
                + (" per pixel" if self.label_shape else ""))

    def shapes(self, batch: int) -> Batch:
        """Return a batch of ``batch`` images that has shapes, and None in place of arrays."""
        return Batch(batch, self.input_shape, label_shape=self.label_shape)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice of a batch's examples. examples: their numbers [N]; epoch: the epoch's number (test examples: -1)."""

    epoch: int
    examples: np.ndarray


def in_order(size: int, batch: int, *, seed: int, skip: int) -> Iterator[Chosen]:
    """Yield the numbers of the examples in each training batch, in the order that ``Data.batches`` describes."""
    first_epoch, first = divmod(skip, size // batch)
    for epoch in count(first_epoch):
        order = np.random.default_rng([seed, epoch]).permutation(size)
        for start in range(first * batch if epoch == first_epoch else 0, size - batch + 1, batch):
            yield Chosen(epoch, order[start:start + batch])


def once(size: int, batch: int) -> Iterator[Chosen]:
    """Yield the numbers of the examples in each test batch: all ``size`` examples once, ascending."""
    for start in range(0, size, batch):
        yield Chosen(-1, np.arange(start, min(start + batch, size)))


def held_out(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of training and of test examples, ascending.
    A random tenth is for the test, always the same for one size."""
    order = np.random.default_rng(SPLIT_SEED).permutation(size)
    test = int(HELD_OUT * size)
    return np.sort(order[test:]), np.sort(order[:test])
