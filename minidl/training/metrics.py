"""Scores of predictions, counted on the host. Knows arrays; no model, no device, no loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IGNORED = -100  # a label that does not count, as in cross_entropy


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
    return np.where(np.isnan(own[:, 0]), logits.shape[1], before.sum(axis=1))


def dice(predicted: np.ndarray, truth: np.ndarray, classes: int) -> float:
    """Mean over the classes of 2 |A and B| / (|A| + |B|), A the pixels predicted to be of a class, B those that are.

    Both: integers of any one shape, below ``classes``. A class that neither has does not count; if there is no other
    it is NaN. Dice, "Measures of the Amount of Ecologic Association Between Species", Ecology 26 (1945).
    """
    both = np.bincount(truth[predicted == truth].ravel(), minlength=classes)
    either = np.bincount(predicted.ravel(), minlength=classes) + np.bincount(truth.ravel(), minlength=classes)
    return float(np.mean(2 * both[either > 0] / either[either > 0])) if (either > 0).any() else float("nan")
