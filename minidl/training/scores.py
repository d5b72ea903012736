"""Functions that score a model's predictions for a batch, in the current runtime.

Each uploads the batch, and frees it before it counts right predictions. On a device without values they return None.
"""

from typing import Any

from minidl.data import Batch, TextBatch, TokenBatch
from minidl.nn import Module
from minidl.runtime import current_runtime
from minidl.training.metrics import Accuracy, NextTokens, Overlap, Words


def of_images(model: Module, batch: Batch) -> Accuracy | None:
    """Return the Accuracy of a classifier of images: [N, C, H, W] -> [N, classes]."""
    images, _ = batch.upload(current_runtime())
    scores = model(images)
    del images
    return None if batch.labels is None else Accuracy.of(scores.numpy(), batch.labels)


def of_pixels(model: Module, batch: Batch) -> Overlap | None:
    """Return the intersections and unions of predicted and true pixels by class; None on a device without values."""
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
