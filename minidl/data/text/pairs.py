"""Pairs of segments for BERT's pre-training: how sentences are paired, and which tokens are to be predicted.

Devlin, Chang, Lee & Toutanova, NAACL 2019, sections 3.1 and A.1-A.2:

  until a document's sentences are used up:
      take sentences until there are enough for a sequence (in one document of ten: for a shorter sequence)
      the first few of them, a random number, are segment A
      half of the time the others are segment B, which follows; else, and if there are no others, B is taken from a
      random place in another document, and the next pair begins with the others
  cut the longer segment, at a random end, until both fit
  predict 15% of the tokens (at most 20 of 128): 8 in 10 of these become [MASK], 1 in 10 a random word, 1 in 10 stay

The pairs of sentences are chosen once for a corpus; cuts and masks are random in each epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidl.data.dataset import SPLIT_SEED
from minidl.data.text.token_file import Tokens
from minidl.data.text.vocabulary import Vocabulary

MASKED_SHARE = 0.15
MASK_SHARE, KEPT_SHARE = 0.8, 0.1  # of the predicted tokens; the rest becomes another word
SHORT_SHARE = 0.1  # share of the documents with shorter sequences
ELSEWHERE_SHARE = 0.5  # share of the pairs whose B is from another document
EXTRA = 3  # [CLS] A [SEP] B [SEP]
IGNORED = -100  # label of a prediction that does not count
_TRIES = 10  # to find another document

Span = tuple[int, int]  # (the first sentence, the one after the last)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two segments of text, as spans of sentence numbers. follows: True if ``b`` comes right after ``a`` in a text."""

    a: Span
    b: Span
    follows: bool


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence for BERT, unpadded: tokens and their segments (ids, types: [n]), and the tokens to be predicted."""

    ids: np.ndarray
    types: np.ndarray  # 0 in the first segment, 1 in the second
    positions: np.ndarray  # [predicted], ascending: the places of the tokens to be predicted
    labels: np.ndarray  # [predicted]: these tokens
    follows: bool  # as in Pair


def make_pairs(tokens: Tokens, documents: Sequence[Span], length: int) -> list[Pair]:
    """Return the pairs of segments from some documents, for sequences of ``length`` tokens; always the same ones."""
    ends = np.asarray(tokens.sentence_ends)
    sizes = np.diff(ends, prepend=0)
    most = length - EXTRA
    pairs = []
    for number, (first, end) in enumerate(documents):
        random = np.random.default_rng([SPLIT_SEED, number])
        enough = int(random.integers(2, most + 1)) if random.random() < SHORT_SHARE else most
        start, held = first, 0
        at = first
        while at < end:
            held += int(sizes[at])
            at += 1
            if at < end and held < enough:
                continue
            cut = start + 1 if at == start + 1 else int(random.integers(start + 1, at))
            if at == start + 1 or random.random() < ELSEWHERE_SHARE:
                wanted = enough - int(sizes[start:cut].sum())
                pairs.append(Pair((start, cut), _elsewhere(documents, number, sizes, wanted, random), False))
                at = cut  # the unused sentences are used again
            else:
                pairs.append(Pair((start, cut), (cut, at), True))
            start, held = at, 0
    return pairs


def _elsewhere(documents: Sequence[Span], number: int, sizes: np.ndarray, wanted: int,
               random: np.random.Generator) -> Span:
    """Return sentences of a random document, if possible not of document ``number``, of about ``wanted`` tokens."""
    other = number
    for _ in range(_TRIES):
        other = int(random.integers(len(documents)))
        if other != number:
            break
    first, end = documents[other]
    start = at = int(random.integers(first, end))
    while at < end and (at == start or wanted > 0):
        wanted -= int(sizes[at])
        at += 1
    return start, at


def example_of(tokens: Tokens, pair: Pair, vocabulary: Vocabulary, ordinary: np.ndarray, *, length: int,
               predictions: int, random: np.random.Generator) -> Example:
    """Return a pair as a sequence of at most ``length`` tokens, with up to ``predictions`` tokens masked.

    ordinary: the pieces from which random words are drawn; BERT's own program also draws the 5 special pieces.
    """
    a, b = (_end_of(tokens, span, most=length) for span in (pair.a, pair.b))
    while len(a) + len(b) > length - EXTRA:
        longer, front = len(a) > len(b), random.random() < 0.5
        cut = slice(1, None) if front else slice(None, -1)
        a, b = (a[cut], b) if longer else (a, b[cut])
    ids = np.concatenate([[vocabulary.cls], a, [vocabulary.sep], b, [vocabulary.sep]]).astype(np.int64)
    types = np.zeros(len(ids), np.int64)
    types[len(a) + 2:] = 1
    words = np.delete(np.arange(1, len(ids) - 1), len(a))  # all positions but those of [CLS] and [SEP]
    count = min(predictions, len(words), max(1, round(MASKED_SHARE * len(ids))))
    positions = np.sort(random.choice(words, count, replace=False))
    labels = ids[positions]
    fate = random.random(count)
    ids[positions[fate < MASK_SHARE]] = vocabulary.mask
    changed = positions[fate >= MASK_SHARE + KEPT_SHARE]
    ids[changed] = random.choice(ordinary, len(changed))
    return Example(ids, types, positions, labels, pair.follows)


def _end_of(tokens: Tokens, span: Span, *, most: int) -> np.ndarray:
    # The beginning of an overlong sentence is enough: the rest would be cut off token by token.
    return np.asarray(tokens.span(*span)[:2 * most])
