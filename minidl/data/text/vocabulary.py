"""Word pieces: a vocabulary read from a file or trained on a text, and the encoding of text with it.

Wu et al., "Google's Neural Machine Translation System", 2016, section 4.1, with BERT's word splitting (Devlin et al.
2019). The package tokenizers does both; it is imported on demand. A vocabulary file has one piece per line, like BERT's
``vocab.txt``; pieces inside words begin with ``##``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minidl.errors import UserError
from minidl.outside.reading import read_text
from minidl.outside.validation import shown

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_PIECES = 1 << 20
MOST_LETTERS = 2000  # letters inside words (##) count separately
MOST_FILE_BYTES = 1 << 26


class Vocabulary:
    """The word pieces of texts, numbered in their order. Text is lower-cased if no piece has a capital letter.

    Raises UserError if a special piece is missing, if there are no other pieces, or if a piece appears twice.
    """

    def __init__(self, pieces: Sequence[str], *, name: str = "the vocabulary") -> None:
        self.pieces = tuple(pieces)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        missing = [piece for piece in SPECIAL if piece not in self._ids]
        if missing:
            raise UserError(f"{name}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        if len(self._ids) != len(self.pieces):
            twice = next(piece for number, piece in enumerate(self.pieces) if self._ids[piece] != number)
            raise UserError(f"{name}: {shown(twice)!r} appears twice")
        if len(self.pieces) == len(SPECIAL):
            raise UserError(f"{name}: it has only the {len(SPECIAL)} special pieces")
        self.pad, self.unknown, self.cls, self.sep, self.mask = (self._ids[piece] for piece in SPECIAL)
        self.lowercase = not any(piece != piece.lower() for piece in self.pieces
                                 if not (piece.startswith("[") and piece.endswith("]")))
        self._tokenizer: Any = None

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def ordinary(self) -> np.ndarray:
        """The numbers of all pieces except the special ones, ascending: random words are drawn from them."""
        return np.array([number for piece, number in self._ids.items() if piece not in SPECIAL], np.int64)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return for each sentence the numbers of its word pieces. Raises UserError if tokenizers is not installed."""
        if self._tokenizer is None:
            tokenizers = _tokenizers()
            model = tokenizers.models.WordPiece(self._ids, unk_token=SPECIAL[1], max_input_chars_per_word=100)
            self._tokenizer = _with_bert_splitting(tokenizers, model, lowercase=self.lowercase)
        return [found.ids for found in self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)]

    def text(self) -> str:
        """Return the vocabulary as the text of a vocabulary file, one piece per line."""
        return "".join(piece + "\n" for piece in self.pieces)


def read_vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary in a file with one piece per line. Raises UserError if the file is not a vocabulary."""
    pieces = read_text(path, most=MOST_FILE_BYTES).removesuffix("\n").split("\n")
    if len(pieces) > MOST_PIECES:
        raise UserError(f"{path}: {len(pieces)} pieces; at most {MOST_PIECES} are allowed")
    return Vocabulary([piece.removesuffix("\r") for piece in pieces], name=str(path))


def train_vocabulary(sentences: Callable[[], Iterable[str]], size: int) -> Vocabulary:
    """Return a vocabulary of at most ``size`` lower-case pieces; always the same for a text.

    It reads the text twice. Raises UserError if ``size`` is too small for the text's letters, or above MOST_PIECES.
    """
    if size > MOST_PIECES:
        raise UserError(f"--vocab-size must be at most {MOST_PIECES}, not {size}")
    tokenizers = _tokenizers()
    tokenizer = _with_bert_splitting(tokenizers, tokenizers.models.WordPiece(unk_token=SPECIAL[1]), lowercase=True)
    # Letters get their numbers here, sorted. The trainer's own order differs between processes, and it decides which of
    # two equally frequent pairs becomes a piece.
    first = [*SPECIAL, *_letters(tokenizer, sentences())]
    if size < len(first):
        raise UserError(f"--vocab-size must be at least {len(first)}, for this text's letters, not {size}")
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(_in_batches(sentences()), trainer)
    numbers: dict[str, int] = tokenizer.get_vocab()
    return Vocabulary(sorted(numbers, key=numbers.__getitem__))


def _letters(tokenizer: Any, sentences: Iterable[str]) -> list[str]:
    """Return the letters that begin words, and (``##``) continue them, sorted; without the rarest beyond MOST_LETTERS.
    """
    found: Counter[str] = Counter()
    for sentence in sentences:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(sentence)):
            found.update((word[0], *("##" + letter for letter in word[1:])))
    return sorted(sorted(found, key=lambda letter: (-found[letter], letter))[:MOST_LETTERS])


def _with_bert_splitting(tokenizers: Any, model: Any, *, lowercase: bool) -> Any:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _in_batches(sentences: Iterable[str], size: int = 1000) -> Iterator[list[str]]:
    group: list[str] = []
    for sentence in sentences:
        group.append(sentence)
        if len(group) == size:
            yield group
            group = []
    yield group


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError('word pieces need tokenizers, which is not installed: pip install "minidl[text]"') from None
    return tokenizers
