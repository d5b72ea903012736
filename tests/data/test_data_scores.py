"""Scores of masks and of masked words: the numbers, by hand; of two batches they add up to those of both together."""

from math import exp, log

import numpy as np
import pytest

from minidl import Runtime, no_grad
from minidl.data import TextBatch
from minidl.models import create
from minidl.training import metrics
from minidl.training.metrics import IGNORED, Overlap, Words

RANDOM = np.random.default_rng(4)


def test_dice_is_counted_over_all_images_and_void_pixels_do_not_count():
    predicted = np.zeros((1, 2, 2, 3), np.float32)
    predicted[0, 1] = [[1, 1, -1], [-1, -1, 1]]  # class 1 where it is above 0
    labels = np.array([[[1, 0, 0], [0, 1, IGNORED]]])
    # Of class 0: 3 there, 3 predicted, 2 both -> 4/6; of class 1: 2 there, 2 predicted, 1 both -> 2/4.
    assert Overlap.of(predicted, labels).dice == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert Overlap.of(predicted, labels).named == {"dice": Overlap.of(predicted, labels).dice}


def test_a_score_of_no_example_is_not_a_number():
    nothing = np.zeros((2, 3), np.float32), np.full(2, IGNORED)
    scores = (metrics.Accuracy.of(*nothing), metrics.NextTokens(0, 0, 0.0), Words(0, 0, 0.0, 0, 0))
    assert all(np.isnan(number) for score in scores for number in score.named.values())


def test_the_scores_of_two_batches_add_up_to_those_of_both_together():
    predicted, labels = RANDOM.standard_normal((6, 3, 4, 4)), RANDOM.integers(0, 3, (6, 4, 4))
    parts = Overlap.of(predicted[:2], labels[:2]) + Overlap.of(predicted[2:], labels[2:])
    assert (parts.dice, parts.count) == (Overlap.of(predicted, labels).dice, 6)
    logits, words = RANDOM.standard_normal((12, 7)), RANDOM.integers(0, 7, 12)
    order, follows = RANDOM.standard_normal((6, 2)), RANDOM.integers(0, 2, 6)
    both = Words.of(logits[:4], words[:4], order[:2], follows[:2]) + Words.of(logits[4:], words[4:], order[2:],
                                                                              follows[2:])
    assert both.named == pytest.approx(Words.of(logits, words, order, follows).named)


def test_the_loss_of_masked_words_is_a_mean_over_those_that_count():
    logits = np.array([[0.0, log(3)], [log(9), 0.0], [5.0, 1.0]], np.float32)
    found = Words.of(logits, np.array([1, 1, IGNORED]), np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    assert found.named == pytest.approx({"masked_lm_loss": -(log(3 / 4) + log(1 / 10)) / 2, "masked_lm_accuracy": 0.5,
                                         "next_sentence_accuracy": 0.5})
    huge = Words.of(np.array([[1e4, 0.0]], np.float32), np.array([1]), np.array([[1.0, 0.0]]), np.array([0]))
    assert huge.loss == 1e4 and exp(-huge.loss) == 0.0


def test_bert_is_scored_by_the_loss_that_it_is_trained_with():
    random = np.random.default_rng(1)
    size, length, predictions = 3, 12, 2
    batch = TextBatch(size, length, predictions, random.integers(0, 50, (size, length)),
                      random.integers(0, 2, (size, length)), np.ones((size, length), np.float32),
                      random.integers(0, length, (size, predictions)), np.array([[3, 4], [5, IGNORED], [9, 9]]),
                      random.integers(0, 2, size))
    with Runtime("cpu:virtual", memory_budget="64MiB", host_memory="1MiB", policy="none") as runtime:
        model = create("bert-tiny", vocabulary=50)
        model.eval()
        with no_grad(), runtime.iteration():
            total = model(*batch.upload(runtime)).item()
            found = metrics.of_words(model, batch)
            _, pooled = model.masked_words(*batch.upload(runtime)[:4])
            order = model.cls.seq_relationship(pooled).numpy().astype(np.float64)
    own = order[np.arange(size), batch.next_sentence_labels]
    next_sentence = (np.log(np.exp(order).sum(axis=1)) - own).mean()
    assert found.named["masked_lm_loss"] + next_sentence == pytest.approx(total, rel=1e-5)
    assert (found.count, found.words) == (3, 5)
