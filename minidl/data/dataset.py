"""The interface of a data set, and the order of its examples. Knows no format, no model, no device.

The order is a permutation for each epoch that follows from the seed alone, and whatever is random about one example
(its crop, its mask) from the seed, the epoch and the example's number. So neither the number of threads nor the place
where a run goes on changes any batch.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

from minidl.data.batch import AnyBatch, Batch, ImageShape
from minidl.data.feed import Feed

HELD_OUT = 0.1  # of a data set that comes without test examples of its own
SPLIT_SEED = 1998  # a split is part of its data set: it does not follow the seed of a run


class Data(Protocol):
    """A data set.

    input_shape    (C, H, W) of an image, (tokens,) of a text
    label_shape    of the labels of one example: () or (H, W)
    num_classes    0 where there are none
    class_names    their names, if the data has any
    real           whether there is something to learn from it
    feed           how its batches keep up with the steps; None where they are at hand
    """

    input_shape: ImageShape
    label_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...]
    real: bool
    feed: Feed | None

    @property
    def train_size(self) -> int | None:
        """How many examples there are to train on; None: there is no end to them."""

    @property
    def described(self) -> str:
        """How much there is of it, for people."""

    def shapes(self, batch: int) -> AnyBatch:
        """A batch of that many examples, without values."""

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[AnyBatch, None, None]:
        """Batches without end, epoch after epoch, without the first ``skip`` ones; each epoch in an order of its own.

        What is left of an epoch when it holds no whole batch is left out, so that every step has the same shapes.
        """

    def test_batches(self, batch: int) -> Iterator[AnyBatch]:
        """Every test example once; the last batch may be smaller."""


class ImageSet:
    """The common part of data sets with a known number of images; Data has the rest."""

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
        """How much there is of it, for people."""
        return (f"{self.train_size} images to train on, {self.test_size} to test with, {self.num_classes} classes"
                + (" a pixel" if self.label_shape else ""))

    def shapes(self, batch: int) -> Batch:
        """A batch of that many examples, without values."""
        return Batch(batch, self.input_shape, label_shape=self.label_shape)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which examples make up a batch: their numbers [N], and the epoch (test examples: -1)."""

    epoch: int
    examples: np.ndarray


def in_order(size: int, batch: int, *, seed: int, skip: int) -> Iterator[Chosen]:
    """The batches of ``size`` examples, without end. ``batch`` must not be above ``size``."""
    first_epoch, first = divmod(skip, size // batch)
    for epoch in count(first_epoch):
        order = np.random.default_rng([seed, epoch]).permutation(size)
        for start in range(first * batch if epoch == first_epoch else 0, size - batch + 1, batch):
            yield Chosen(epoch, order[start:start + batch])


def once(size: int, batch: int) -> Iterator[Chosen]:
    """Every example once, in the order of the data set."""
    for start in range(0, size, batch):
        yield Chosen(-1, np.arange(start, min(start + batch, size)))


def held_out(size: int) -> tuple[np.ndarray, np.ndarray]:
    """(examples to train on, examples to test with), each ascending: always the same ones for a size."""
    order = np.random.default_rng(SPLIT_SEED).permutation(size)
    test = int(HELD_OUT * size)
    return np.sort(order[test:]), np.sort(order[:test])
