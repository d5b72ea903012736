"""Scores of predictions, counted on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

IGNORED = -100  # a label that does not count, as in cross_entropy


class Score(Protocol):
    """Counts over some test examples; the counts of two batches can be added."""

    @property
    def count(self) -> int:
        """How many examples were scored."""

    @property
    def named(self) -> dict[str, float]:
        """The numbers that are told, by the names that a run folder has for them."""

    def __add__(self, other: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many predictions were right; of two batches it can be added up."""

    count: int = 0
    right: int = 0
    among_five: int = 0

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray | None, *, ignore: int = IGNORED) -> Accuracy:
        """logits: [N, classes], labels: [N]. Rows with the label ``ignore`` do not count.

        Images and their classes; or predicted positions of text and the words that are there (masked-LM accuracy).
        """
        assert labels is not None
        rank = ranks(logits[labels != ignore], labels[labels != ignore])
        return cls(len(rank), int((rank < 1).sum()), int((rank < 5).sum()))

    def __add__(self, other: Accuracy) -> Accuracy:
        return Accuracy(self.count + other.count, self.right + other.right, self.among_five + other.among_five)

    @property
    def named(self) -> dict[str, float]:
        """``top1`` and ``top5``."""
        return {"top1": self.top1, "top5": self.top5}

    @property
    def top1(self) -> float:
        """Share whose largest logit is that of the label."""
        return self.right / self.count

    @property
    def top5(self) -> float:
        """Share whose label is among the five largest logits."""
        return self.among_five / self.count


def ranks(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many classes come before the label's: [N, classes], [N] -> [N].

    Of equal logits the first class comes first, as for argmax. A label whose logit is NaN is last.
    """
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    earlier = np.arange(logits.shape[1]) < labels[:, None]
    before = (logits > own) | ((logits == own) & earlier) | np.isnan(logits)
    found: np.ndarray = np.where(np.isnan(own[:, 0]), logits.shape[1], before.sum(axis=1))
    return found


@dataclass(frozen=True, slots=True)
class Overlap:
    """Pixels of each class, [classes]: predicted and there, and the two together; of two batches they add up."""

    count: int
    both: np.ndarray
    together: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray) -> Overlap:
        """scores: [N, classes, H, W], labels: [N, H, W]. Pixels with the label IGNORED do not count."""
        seen, classes = labels != IGNORED, scores.shape[1]
        return cls(len(labels), *_overlap(scores.argmax(axis=1)[seen], labels[seen], classes))

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(self.count + other.count, self.both + other.both, self.together + other.together)

    @property
    def named(self) -> dict[str, float]:
        """``dice`` alone."""
        return {"dice": self.dice}

    @property
    def dice(self) -> float:
        """The mean over the classes of ``dice``, counted over all images at once."""
        return _mean_dice(self.both, self.together)


@dataclass(frozen=True, slots=True)
class Words:
    """How well masked words and the order of segments were predicted; of two batches it can be added up.

    loss   sum over the words of -log of the probability given to the right one (nats)
    """

    count: int
    words: int
    loss: float
    right: int
    ordered: int

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray, order: np.ndarray, follows: np.ndarray) -> Words:
        """logits: [words, vocabulary], labels: [words] (IGNORED: does not count); order: [N, 2], follows: [N]."""
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
        """The words' mean loss (nats) and accuracy, and how often the order was right."""
        return {"masked_lm_loss": self.loss / self.words, "masked_lm_accuracy": self.right / self.words,
                "next_sentence_accuracy": self.ordered / self.count}


def dice(predicted: np.ndarray, truth: np.ndarray, classes: int) -> float:
    """Mean over the classes of 2 |A and B| / (|A| + |B|), A the pixels predicted to be of a class, B those that are.

    Both: integers of any one shape, below ``classes``. A class that neither has does not count; if there is no other
    it is NaN. Dice, "Measures of the Amount of Ecologic Association Between Species", Ecology 26 (1945).
    """
    return _mean_dice(*_overlap(predicted, truth, classes))


def _overlap(predicted: np.ndarray, truth: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """(pixels of each class in both, in one plus in the other), [classes] each."""
    both = np.bincount(truth[predicted == truth].ravel(), minlength=classes)
    together = np.bincount(predicted.ravel(), minlength=classes) + np.bincount(truth.ravel(), minlength=classes)
    return both, together


def _mean_dice(both: np.ndarray, together: np.ndarray) -> float:
    there = together > 0
    return float(np.mean(2 * both[there] / together[there])) if there.any() else float("nan")
