"""A data set of encoded images, decoded by threads before they are needed; training uses a random crop of each.

An ``ImageSource`` has the bytes of the files, the module ``pixels`` decodes them, and a ``Feed`` has the threads.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from minidl.data.batch import Batch
from minidl.data.dataset import Chosen, ImageSet, held_out, in_order, once
from minidl.data.feed import Feed, Job
from minidl.data.pixels import central_view, classes_of, decode, orientation, pixels, random_view, whole
from minidl.data.source import BadFile, BadFiles, ImageSource
from minidl.errors import UserError

LEAST_WITH_MASK = 0.5  # least area of a view of an image with a mask: smaller views show too little of the objects


@dataclass(frozen=True, slots=True)
class Subset:
    """Some of a source's images: those with the numbers ``examples``."""

    source: ImageSource
    examples: np.ndarray

    def __len__(self) -> int:
        return len(self.examples)


class Images(ImageSet):
    """The data set of the images in files, each [channels, size, size], normalised, with one class or one per pixel.

    train, test   sources of the images; ``test`` None: a fixed tenth of ``train`` becomes the test part
    num_classes   None: the number of class names or, without names, one more than the largest label
    channels      1 (grey) or 3
    bad           the handling of broken files. If they are skipped, the next whole image replaces a broken one in
                  training; in the test a broken image is left out.
    """

    def __init__(self, train: ImageSource, test: ImageSource | None, *, size: int, channels: int,
                 num_classes: int | None, bad: BadFiles, feed: Feed) -> None:
        self.input_shape = (channels, size, size)
        self.label_shape = (size, size) if train.labels is None else ()
        self.class_names = train.class_names
        self.feed = feed
        self._bad = bad
        self._feed = feed
        if test is None:
            learnt, tested = held_out(len(train))
            self._train, self._test = Subset(train, learnt), Subset(train, tested)
        else:
            self._train, self._test = Subset(train, np.arange(len(train))), Subset(test, np.arange(len(test)))
        self.train_size, self.test_size = len(self._train), len(self._test)
        self.num_classes = self._count_classes(num_classes)

    def _count_classes(self, wanted: int | None) -> int:
        """Return the number of classes, ``wanted`` or found in the data. An image whose class is higher is a bad file.
        """
        if self._train.source.labels is None:
            assert wanted is not None, "masks do not say how many classes there are"
            return wanted
        if wanted is None:
            wanted = len(self.class_names) or int(self._train.source.labels.max()) + 1
        for part in (self._train, self._test):
            labels = part.source.labels
            assert labels is not None
            wrong = np.flatnonzero(labels >= wanted)
            for example in wrong:
                self._bad.note(BadFile(part.source.name(int(example)), f"class {labels[example]}, but there are only "
                                                                      f"{wanted} (0 to {wanted - 1})"))
        return wanted

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[Batch, None, None]:
        """Yield training batches without end, as ``Data.batches`` describes, with a random view of each image.

        Raises BadFile when a batch with a broken image is due, unless bad files are skipped.
        """
        chosen = in_order(self.train_size, batch, seed=seed, skip=skip)
        yield from self._feed.run(self._job(self._train, some, seed) for some in chosen)

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """Yield every test image once: its centre or, with a mask, all of it. Raises BadFile as ``batches`` does."""
        jobs = (self._job(self._test, some, None) for some in once(self.test_size, batch))
        return (made for made in self._feed.run(jobs) if made.size)

    def _job(self, part: Subset, chosen: Chosen, seed: int | None) -> Job[Batch]:
        """Return the work to make the batch of ``chosen`` examples. seed: None for a test batch: no random views."""
        count = len(chosen.examples)
        images = np.empty((count, *self.input_shape), np.float32)
        labels = np.empty((count, *self.label_shape), np.int64)
        kept = np.ones(count, bool)
        left_out: list[BadFile] = []  # counted when the batch is due, so that counts do not depend on threads

        def fill(row: int) -> None:
            at = int(chosen.examples[row])
            for step in range(len(part) if seed is not None else 1):
                example = int(part.examples[(at + step) % len(part)])
                if part.source.name(example) in self._bad:
                    continue
                random = None if seed is None else np.random.default_rng([seed, chosen.epoch, example])
                try:
                    self._fill(part.source, example, random, images[row], labels[row:row + 1])
                    return
                except BadFile as error:
                    if not self._bad.skip:
                        raise
                    left_out.append(error)
            if seed is not None:
                raise UserError(f"{part.source.name(0)}: neither this nor any of the other {len(part) - 1} images "
                                "can be used")
            kept[row] = False

        def done() -> Batch:
            for error in left_out:
                self._bad.note(error)
            whole_batch = kept.all()
            return Batch(int(kept.sum()), self.input_shape, images if whole_batch else images[kept],
                         labels if whole_batch else labels[kept], self.label_shape)

        return Job(count, [partial(fill, row) for row in range(count)], done)

    def _fill(self, source: ImageSource, example: int, random: np.random.Generator | None, image_out: np.ndarray,
              label_out: np.ndarray) -> None:
        """Decode an image into ``image_out``, and its class [1] or its mask [1, size, size] into ``label_out``.
        random: for training's random crop; None: the centre or, with a mask, all of the image."""
        name, size = source.name(example), self.input_shape[1]
        image = decode(source.image(example), name, mode="L" if self.input_shape[0] == 1 else "RGB")
        width, height = image.size
        if source.labels is not None:
            label_out[0] = source.labels[example]
            view = central_view(width, height) if random is None else random_view(width, height, random)
        else:
            mask = decode(source.mask(example), f"the mask of {name}", mode=None)
            if orientation(mask) != orientation(image):  # unknown which of the two is drawn upright
                raise BadFile(name, f"its EXIF orientation {orientation(image)} differs from its mask's "
                                    f"({orientation(mask)})")
            if mask.size != image.size:
                raise BadFile(name, f"{width} x {height} pixels, but its mask {mask.size[0]} x {mask.size[1]}")
            view = whole(width, height) if random is None else random_view(width, height, random,
                                                                           least=LEAST_WITH_MASK)
            classes_of(mask, view, size, f"the mask of {name}", num_classes=self.num_classes,
                       out=label_out[0])
        pixels(image, view, size, out=image_out)
