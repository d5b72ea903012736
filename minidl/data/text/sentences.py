"""The data set of sentences for BERT: from a corpus and a vocabulary to batches of masked pairs."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from minidl.data.batch import ImageShape, TextBatch
from minidl.data.dataset import HELD_OUT, SPLIT_SEED, Chosen, held_out, in_order, once
from minidl.data.feed import Feed, Job
from minidl.data.source import BadFile, BadFiles
from minidl.data.text.corpus import documents
from minidl.data.text.pairs import EXTRA, IGNORED, Pair, Span, example_of, make_pairs
from minidl.data.text.token_file import UNKNOWN, Tokens, fingerprint, is_made_of, read_tokens, write_tokens
from minidl.data.text.token_file import is_own as token_file_is_own
from minidl.data.text.vocabulary import SPECIAL, Vocabulary, read_vocabulary, train_vocabulary
from minidl.errors import UserError
from minidl.outside.reading import is_there
from minidl.outside.writing import begins_with, require_place, write_whole

LEAST_LENGTH = EXTRA + 2
FEW = 10  # with fewer documents, the end of each is held out


class Sentences:
    """The data set of pairs of segments from text files, for BERT.
    A tenth of the documents becomes the test part; of fewer than 10 documents, the end of each. Raises UserError for a
    length below 5.

    vocabulary    the word pieces of the text
    length        tokens per sequence; predictions: the most tokens of a sequence that are predicted
    """

    label_shape: tuple[int, ...] = ()
    num_classes = 0
    class_names: tuple[str, ...] = ()
    real = True

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary, *, length: int, predictions: int,
                 feed: Feed) -> None:
        if length < LEAST_LENGTH:
            raise UserError(f"--sequence-length must be at least {LEAST_LENGTH} for pairs of sentences, not {length}")
        self.input_shape: ImageShape = (length,)
        self.feed: Feed | None = feed
        self.vocabulary = vocabulary
        self.predictions = predictions
        self._feed = feed
        self._tokens = tokens
        self._ordinary = vocabulary.ordinary
        learnt, tested = _split_documents(tokens)
        self._train, self._test = make_pairs(tokens, learnt, length), make_pairs(tokens, tested, length)

    @property
    def train_size(self) -> int:
        """The number of training pairs."""
        return len(self._train)

    @property
    def unigram_entropy(self) -> float:
        """The entropy of the text's single tokens, in nats.

        It is the loss of a model that knows only how frequent each word piece is.
        """
        counts = np.bincount(self._tokens.ids, minlength=1)
        shares = counts[counts > 0] / len(self._tokens.ids)
        return float(-(shares * np.log(shares)).sum())

    @property
    def described(self) -> str:
        """A text about the size of the data set, for people."""
        tokens = self._tokens
        return (f"{len(tokens.document_ends)} documents, {len(tokens.sentence_ends)} sentences, {len(tokens.ids)} "
                f"tokens of {len(self.vocabulary)} word pieces with a unigram entropy of {self.unigram_entropy:.3f}; "
                f"{len(self._train)} pairs to train on, {len(self._test)} to test with")

    def shapes(self, batch: int) -> TextBatch:
        """Return a batch of ``batch`` sequences that has shapes, and None in place of arrays."""
        return TextBatch(batch, self.input_shape[0], self.predictions)

    def batches(self, batch: int, *, seed: int = 0, skip: int = 0) -> Generator[TextBatch, None, None]:
        """Yield training batches without end, as ``Data.batches`` describes; masks differ between epochs."""
        chosen = in_order(len(self._train), batch, seed=seed, skip=skip)
        yield from self._feed.run(self._job(self._train, some, seed) for some in chosen)

    def test_batches(self, batch: int) -> Iterator[TextBatch]:
        """Yield every pair of the test part once, in batches of ``batch`` pairs, always with the same masks."""
        return self._feed.run(self._job(self._test, some, SPLIT_SEED) for some in once(len(self._test), batch))

    def _job(self, pairs: list[Pair], chosen: Chosen, seed: int) -> Job[TextBatch]:
        made: list[TextBatch] = []
        return Job(len(chosen.examples), [partial(self._make, made, pairs, chosen, seed)], made.pop)

    def _make(self, made: list[TextBatch], pairs: list[Pair], chosen: Chosen, seed: int) -> None:
        size, length = len(chosen.examples), self.input_shape[0]
        ids = np.full((size, length), self.vocabulary.pad, np.int64)
        types, seen = np.zeros((size, length), np.int64), np.zeros((size, length), np.float32)
        positions = np.zeros((size, self.predictions), np.int64)
        labels = np.full((size, self.predictions), IGNORED, np.int64)
        elsewhere = np.empty(size, np.int64)
        for row, number in enumerate(chosen.examples):
            random = np.random.default_rng([seed, chosen.epoch + 1, number])
            example = example_of(self._tokens, pairs[number], self.vocabulary, self._ordinary, length=length,
                                 predictions=self.predictions, random=random)
            used, predicted = len(example.ids), len(example.positions)
            ids[row, :used], types[row, :used], seen[row, :used] = example.ids, example.types, 1.0
            positions[row, :predicted], labels[row, :predicted] = example.positions, example.labels
            elsewhere[row] = not example.follows
        made.append(TextBatch(size, length, self.predictions, ids, types, seen, positions, labels, elsewhere))


def open_tokens(paths: Sequence[Path], *, vocab: Path | None, vocab_size: int, token_file: Path, bad: BadFiles,
                force: bool = False) -> tuple[Tokens, Vocabulary]:
    """Return the tokens of text files. They are kept as numbers in ``token_file``, which is written if needed.

    vocab: a vocabulary file; None: one of ``vocab_size`` pieces is trained, and stored beside the token file. force:
    overwrite files that minidl did not write. Raises BadFile for a file that is not text, unless
    these are skipped; UserError for a bad vocabulary, and for a file that it may or can not write.
    """
    require_place(token_file, token_file_is_own, force=force)
    vocabulary, made_of = _stored_vocabulary(paths, vocab, vocab_size, token_file)
    if vocabulary is None:
        vocabulary = train_vocabulary(lambda: chain.from_iterable(_documents(paths, bad)), vocab_size)
        made_of = fingerprint(paths, vocabulary, trained_for=vocab_size)
        write_whole(_vocabulary_path(token_file), vocabulary.text().encode(), begins_with("".join(
            piece + "\n" for piece in SPECIAL).encode()), force=force)
    if not is_made_of(token_file, made_of):
        # Without some of its files it is another corpus; the next run must notice (and report) that again.
        write_tokens(token_file, _documents(paths, bad), vocabulary, lambda: UNKNOWN if len(bad) else made_of,
                     force=force)
    return read_tokens(token_file), vocabulary


def _stored_vocabulary(paths: Sequence[Path], vocab: Path | None, vocab_size: int,
                       token_file: Path) -> tuple[Vocabulary | None, bytes]:
    """Return the vocabulary of ``vocab`` or of an up-to-date token file (else None), and the sources' fingerprint."""
    if vocab is not None:
        vocabulary = read_vocabulary(vocab)
        return vocabulary, fingerprint(paths, vocabulary, trained_for=None)
    if is_there(token_file) and is_there(_vocabulary_path(token_file)):
        vocabulary = read_vocabulary(_vocabulary_path(token_file))
        made_of = fingerprint(paths, vocabulary, trained_for=vocab_size)
        if is_made_of(token_file, made_of):
            return vocabulary, made_of
    return None, UNKNOWN


def _vocabulary_path(token_file: Path) -> Path:
    return token_file.with_name(token_file.name + ".vocab.txt")


def _documents(paths: Sequence[Path], bad: BadFiles) -> Iterator[list[str]]:
    for path in paths:
        if str(path) in bad:
            continue
        try:
            yield from documents(path)
        except BadFile as error:
            bad.note(error)


def _split_documents(tokens: Tokens) -> tuple[list[Span], list[Span]]:
    """Return the training documents and the test documents, each as a span of sentence numbers."""
    ends = [int(end) for end in tokens.document_ends]
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    if len(spans) >= FEW:
        learnt, tested = held_out(len(spans))
        return [spans[n] for n in learnt], [spans[n] for n in tested]
    cuts = [end - int(HELD_OUT * (end - first)) for first, end in spans]
    return ([(first, cut) for (first, _), cut in zip(spans, cuts, strict=True)],
            [(cut, end) for (_, end), cut in zip(spans, cuts, strict=True) if cut < end])
