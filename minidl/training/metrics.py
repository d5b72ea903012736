"""Scores of predictions, computed on the host, and functions that score a model's predictions for a batch.

The functions ``of_...`` upload a batch in the current runtime, run the model, and return a score: counts that can be
added. For a batch of shapes alone, which has no labels, they return None.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

import numpy as np

from minidl.data import Batch, TextBatch, TokenBatch
from minidl.nn import Module
from minidl.runtime import current_runtime

IGNORED = -100  # a label that does not count, as in cross_entropy


class Score(Protocol):
    """Counts over some test examples; the counts of two batches can be added."""

    @property
    def count(self) -> int:
        """The number of scored examples."""

    @property
    def named(self) -> dict[str, float]:
        """The reported numbers, by their names in a run folder."""

    def __add__(self, other: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts of examples and of right predictions; the counts of two batches can be added.
    right: those whose label has the largest logit. among_five: those whose label is among the five largest."""

    count: int = 0
    right: int = 0
    among_five: int = 0

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray | None, *, ignore: int = IGNORED) -> Accuracy:
        """Count right predictions. logits: [N, classes], labels: [N]. Rows with the label ``ignore`` do not count.
        The rows are images and their classes, or masked positions of a text and their words."""
        assert labels is not None
        rank = ranks(logits[labels != ignore], labels[labels != ignore])
        return cls(len(rank), int((rank < 1).sum()), int((rank < 5).sum()))

    def __add__(self, other: Accuracy) -> Accuracy:
        return Accuracy(self.count + other.count, self.right + other.right, self.among_five + other.among_five)

    @property
    def named(self) -> dict[str, float]:
        """The accuracies, under the names ``top1`` and ``top5``, as fractions from 0 to 1; NaN of no example."""
        return {"top1": self.top1, "top5": self.top5}

    @property
    def top1(self) -> float:
        """The fraction of examples whose largest logit is that of the label."""
        return _share(self.right, self.count)

    @property
    def top5(self) -> float:
        """The fraction of examples whose label is among the five largest logits."""
        return _share(self.among_five, self.count)


def _share(part: float, whole: int) -> float:
    """Return part / whole; NaN of nothing."""
    return part / whole if whole else nan


def ranks(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the rank of each label, the number of classes before it: [N, classes], [N] -> [N].

    Classes are ranked by falling logit, equal logits by class number, as in argmax. A label with a NaN logit is last;
    other classes with a NaN logit come before the label.
    """
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    earlier = np.arange(logits.shape[1]) < labels[:, None]
    before = (logits > own) | ((logits == own) & earlier) | np.isnan(logits)
    found: np.ndarray = np.where(np.isnan(own[:, 0]), logits.shape[1], before.sum(axis=1))
    return found


@dataclass(frozen=True, slots=True)
class Overlap:
    """Counts of pixels per class, [classes], over ``count`` images; the counts of two batches can be added.

    both      pixels whose predicted class and label are the class
    together  pixels predicted as the class plus pixels labelled as it
    """

    count: int
    both: np.ndarray
    together: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray) -> Overlap:
        """Count pixels. scores: [N, classes, H, W], labels: [N, H, W]. Pixels with the label IGNORED do not count."""
        seen, classes = labels != IGNORED, scores.shape[1]
        return cls(len(labels), *_overlap(scores.argmax(axis=1)[seen], labels[seen], classes))

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(self.count + other.count, self.both + other.both, self.together + other.together)

    @property
    def named(self) -> dict[str, float]:
        """The mean Dice coefficient, from 0 to 1, under the name ``dice``."""
        return {"dice": self.dice}

    @property
    def dice(self) -> float:
        """The mean Dice coefficient over the classes, with pixels counted over all images together."""
        return _mean_dice(self.both, self.together)


@dataclass(frozen=True, slots=True)
class Words:
    """Counts for predictions of masked words, and of whether one segment follows another; they can be added.

    count, ordered   pairs of segments, and those of them that were predicted right
    words, right     masked words, and those of them that were predicted right
    loss             sum over the words of -log(probability of the right word), in nats"""

    count: int
    words: int
    loss: float
    right: int
    ordered: int

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray, order: np.ndarray, follows: np.ndarray) -> Words:
        """Score a batch. logits: [words, vocabulary], labels: [words]; words with the label IGNORED do not count.
        order: [N, 2], logits for the order of two segments. follows: [N], their labels, 0 or 1."""
        counted = labels != IGNORED
        logits, labels = logits[counted].astype(np.float64), labels[counted]
        logits -= logits.max(axis=1, keepdims=True)
        own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        loss = float((np.log(np.exp(logits).sum(axis=1)) - own).sum())
        return cls(len(follows), len(labels), loss, int((ranks(logits, labels) < 1).sum()),
                   int((order.argmax(axis=1) == follows).sum()))

    def __add__(self, other: Words) -> Words:
        return Words(self.count + other.count, self.words + other.words, self.loss + other.loss,
                     self.right + other.right, self.ordered + other.ordered)

    @property
    def named(self) -> dict[str, float]:
        """By their names in ``--json``: the masked words' mean loss in nats and accuracy, and next-sentence accuracy.
        """
        return {"masked_lm_loss": _share(self.loss, self.words), "masked_lm_accuracy": _share(self.right, self.words),
                "next_sentence_accuracy": _share(self.ordered, self.count)}


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The loss of next tokens, for ``count`` sequences; those of two batches can be added.
    loss   sum over the tokens of -log(probability of the right token), in nats"""

    count: int
    tokens: int
    loss: float

    def __add__(self, other: NextTokens) -> NextTokens:
        return NextTokens(self.count + other.count, self.tokens + other.tokens, self.loss + other.loss)

    @property
    def named(self) -> dict[str, float]:
        """The tokens' mean loss in nats, under the name ``next_token_loss``."""
        return {"next_token_loss": _share(self.loss, self.tokens)}


def dice(predicted: np.ndarray, truth: np.ndarray, classes: int) -> float:
    """Return the mean Dice coefficient, 2 |A and B| / (|A| + |B|), over classes.

    A: the pixels predicted as a class, B: the pixels of the class. predicted, truth: integers below ``classes``, of one
    shape. Classes that occur in neither do not count; without any class the mean is NaN. Dice, "Measures of the Amount
    of Ecologic Association Between Species", Ecology 26 (1945).
    """
    return _mean_dice(*_overlap(predicted, truth, classes))


def _overlap(predicted: np.ndarray, truth: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return per class |A and B| and |A| + |B| (see ``dice``), [classes] each."""
    both = np.bincount(truth[predicted == truth].ravel(), minlength=classes)
    together = np.bincount(predicted.ravel(), minlength=classes) + np.bincount(truth.ravel(), minlength=classes)
    return both, together


def _mean_dice(both: np.ndarray, together: np.ndarray) -> float:
    there = together > 0
    return float(np.mean(2 * both[there] / together[there])) if there.any() else float("nan")


def of_images(model: Module, batch: Batch) -> Accuracy | None:
    """Return the Accuracy of a classifier of images: [N, C, H, W] -> [N, classes]."""
    images, _ = batch.upload(current_runtime())
    scores = model(images)
    del images
    return None if batch.labels is None else Accuracy.of(scores.numpy(), batch.labels)


def of_pixels(model: Module, batch: Batch) -> Overlap | None:
    """Return the Overlap of predicted and true classes of pixels: [N, C, H, W] -> [N, classes, H, W]."""
    images, _ = batch.upload(current_runtime())
    scores = model(images)
    del images
    return None if batch.labels is None else Overlap.of(scores.numpy(), batch.labels)


def of_words(model: Any, batch: TextBatch) -> Words | None:
    """Return the Words score of a BertForPreTraining: masked words, and the order of segments."""
    ids, types, seen, positions, _, _ = batch.upload(current_runtime())
    words, pooled = model.masked_words(ids, types, seen, positions)
    order = model.cls.seq_relationship(pooled)
    if batch.masked_labels is None or batch.next_sentence_labels is None:
        return None
    return Words.of(words.numpy(), batch.masked_labels.ravel(), order.numpy(), batch.next_sentence_labels)


def of_next_tokens(model: Module, batch: TokenBatch) -> NextTokens | None:
    """Return the NextTokens of a language model whose forward pass returns the mean loss of all tokens."""
    ids, labels = batch.upload(current_runtime())
    loss = model(ids, labels)
    return None if batch.labels is None else NextTokens(batch.size, batch.labels.size, batch.labels.size * loss.item())
