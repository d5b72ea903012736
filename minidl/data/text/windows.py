"""The data set of running text for language models: windows of consecutive tokens, and the token after each."""

from collections.abc import Generator, Iterator
from functools import partial

import numpy as np

from minidl.data.batch import ImageShape, TokenBatch
from minidl.data.dataset import HELD_OUT, Chosen, in_order, once
from minidl.data.feed import Feed, Job
from minidl.data.text.token_file import Tokens
from minidl.data.text.vocabulary import Vocabulary
from minidl.errors import UserError


class Windows:
    """The data set of windows of ``length`` tokens, which follow each other in the text without a gap.

    All documents are one text, in the order of the files. The last tenth of the windows becomes the test part. Raises
    UserError for a text of fewer than two windows.
    """

    label_shape: tuple[int, ...] = ()
    num_classes = 0
    class_names: tuple[str, ...] = ()
    real = True

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary, *, length: int, feed: Feed) -> None:
        self.input_shape: ImageShape = (length,)
        self.feed: Feed | None = feed
        self.vocabulary = vocabulary
        self._feed = feed
        self._tokens = tokens
        windows = (len(tokens.ids) - 1) // length
        if windows < 2:
            raise UserError(f"a text of {len(tokens.ids)} tokens has no two sequences of {length}: give a shorter "
                            "--sequence-length")
        self._test = max(1, int(HELD_OUT * windows))
        self.train_size = windows - self._test

    @property
    def described(self) -> str:
        """A text about the size of the data set, for people."""
        return (f"{len(self._tokens.ids)} tokens of {len(self.vocabulary)} word pieces; {self.train_size} sequences to "
                f"train on, {self._test} to test with")

    def shapes(self, batch: int) -> TokenBatch:
        """Return a batch of ``batch`` sequences that has shapes, and None in place of arrays."""
        return TokenBatch(batch, self.input_shape[0])

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[TokenBatch, None, None]:
        """Yield training batches without end, as ``Data.batches`` describes."""
        order = in_order(self.train_size, batch, seed=seed, skip=skip)
        yield from self._feed.run(self._job(chosen) for chosen in order)

    def test_batches(self, batch: int) -> Iterator[TokenBatch]:
        """Yield every window of the test part once, in batches of ``batch`` windows."""
        return self._feed.run(self._job(chosen, self.train_size) for chosen in once(self._test, batch))

    def _job(self, chosen: Chosen, first: int = 0) -> Job[TokenBatch]:
        made: list[TokenBatch] = []
        return Job(len(chosen.examples), [partial(self._make, made, chosen.examples + first)], made.pop)

    def _make(self, made: list[TokenBatch], windows: np.ndarray) -> None:
        length = self.input_shape[0]
        rows = np.stack([self._tokens.ids[n * length:(n + 1) * length + 1] for n in windows]).astype(np.int64)
        made.append(TokenBatch(len(windows), length, rows[:, :-1].copy(), rows[:, 1:].copy()))
