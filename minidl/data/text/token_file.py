"""A tokenised corpus in one file, and its data set for language models: windows of tokens, with the token after each.

The file is memory-mapped, so a corpus may be larger than memory.

  16 bytes    ``minidl tokens 1`` and a line feed
  6 uint64    documents, sentences, tokens, bytes of a token (2 or 4), pieces of the vocabulary, 0
  32 bytes    SHA-256 of its sources: the text files and the vocabulary
  tokens      [tokens], then zeros up to a multiple of 8 bytes
  int64       [sentences], the number of tokens up to the end of each
  int64       [documents], the number of sentences up to the end of each

All little-endian. A file whose length does not agree with its first 96 bytes is refused.
"""

import hashlib
import os
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from minidl.data.batch import ImageShape, TokenBatch
from minidl.data.dataset import HELD_OUT, Chosen, in_order, once
from minidl.data.feed import Feed, Job
from minidl.data.source import BadFile, as_bad_file
from minidl.data.text.corpus import Document
from minidl.data.text.vocabulary import Vocabulary
from minidl.errors import UserError
from minidl.outside.reading import open_file, reading
from minidl.outside.writing import begins_with, open_whole

MAGIC = b"minidl tokens 1\n"
HEADER_BYTES = len(MAGIC) + 6 * 8 + 32
UNKNOWN = bytes(32)  # a fingerprint that never matches: the file will be rebuilt
_GROUP = 256  # documents that are encoded at once
_CHECKED = 1 << 22  # tokens that are checked at once


@dataclass(frozen=True, slots=True)
class Tokens:
    """A corpus as token numbers ``ids``, where sentence n is ids[sentence_ends[n - 1]:sentence_ends[n]]."""

    ids: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray  # the number of sentences up to the end of each document
    pieces: int  # the size of the vocabulary

    def span(self, first: int, end: int) -> np.ndarray:
        """Return the tokens of sentences ``first`` up to, not including, ``end``."""
        return self.ids[self.sentence_ends[first - 1] if first else 0:self.sentence_ends[end - 1] if end else 0]


def fingerprint(paths: Sequence[Path], vocabulary: Vocabulary, *, trained_for: int | None) -> bytes:
    """Return 32 bytes that identify the sources of a token file: the contents of the files, and the vocabulary.

    trained_for: the requested size of a trained vocabulary; None: it was given. Raises Unreadable if reading fails.
    """
    whole = hashlib.sha256(f"{trained_for} {vocabulary.text()}".encode())
    for path in paths:
        with reading(path), open_file(path) as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()


is_own = begins_with(MAGIC)


def write_tokens(path: Path, documents: Iterable[Document], vocabulary: Vocabulary, made_of: Callable[[], bytes], *,
                 force: bool = False) -> None:
    """Write documents as token numbers to a token file, a few at a time. Raises UserError if it cannot be written.

    made_of: called at the end, when it is known if all files could be read; returns the fingerprint to store.
    """
    kind = np.dtype("<u2" if len(vocabulary) <= 1 << 16 else "<u4")
    sentence_ends, document_ends = array("q"), array("q")
    total = 0
    with open_whole(path, is_own, force=force) as file:
        file.write(bytes(HEADER_BYTES))
        rest = iter(documents)
        while group := list(islice(rest, _GROUP)):
            encoded = iter(vocabulary.encode([sentence for document in group for sentence in document]))
            for document in group:
                found = [ids for ids in islice(encoded, len(document)) if ids]
                for ids in found:
                    file.write(np.array(ids, kind).tobytes())
                    total += len(ids)
                    sentence_ends.append(total)
                if found:
                    document_ends.append(len(sentence_ends))
        file.write(bytes(-file.tell() % 8))
        for ends in (sentence_ends, document_ends):
            file.write(np.array(ends, "<i8").tobytes())
        file.seek(0)
        counts = len(document_ends), len(sentence_ends), total, kind.itemsize, len(vocabulary), 0
        file.write(MAGIC + np.array(counts, "<u8").tobytes() + made_of())


def is_made_of(path: Path, made_of: bytes) -> bool:
    """Return True if there is a token file at ``path`` with the fingerprint ``made_of`` of its sources."""
    try:
        with as_bad_file(path), open_file(path) as file:
            head = file.read(HEADER_BYTES)
    except BadFile:
        return False
    return head.startswith(MAGIC) and head.endswith(made_of) and len(head) == HEADER_BYTES


def read_tokens(path: Path) -> Tokens:
    """Return the corpus in a token file, memory-mapped. Raises BadFile if it has another format or is damaged."""
    with as_bad_file(path), open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
            raise BadFile(str(path), "not a token file")
        numbers = np.frombuffer(head, "<u8", 6, len(MAGIC))
        documents, sentences, total, width, pieces = map(int, numbers[:5])
        after = HEADER_BYTES + -(-total * width // 8) * 8
        if width not in (2, 4) or after + 8 * (sentences + documents) != size or not documents:
            raise BadFile(str(path), f"{size} bytes, which do not agree with {total} tokens of {width} bytes, "
                                     f"{sentences} sentences and {documents} documents")
        if not sentences or not total:
            raise BadFile(str(path), "damaged: documents without a token")
        ids = np.memmap(file, f"<u{width}", "r", HEADER_BYTES, (total,))
        sentence_ends = np.memmap(file, "<i8", "r", after, (sentences,))
        document_ends = np.memmap(file, "<i8", "r", after + 8 * sentences, (documents,))
    for ends, last in ((sentence_ends, total), (document_ends, sentences)):
        if ends[0] < 1 or ends[-1] != last or (np.diff(ends) < 1).any():
            raise BadFile(str(path), "damaged: its ends are not in order")
    if any(int(ids[start:start + _CHECKED].max()) >= pieces for start in range(0, total, _CHECKED)):
        raise BadFile(str(path), f"damaged: a token above the {pieces} pieces of its vocabulary")
    return Tokens(ids, sentence_ends, document_ends, pieces)


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
