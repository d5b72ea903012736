"""Solutions of lesson 11."""

from __future__ import annotations


def lasting_bytes(parameters: int, trained: int, on_host: bool) -> int:
    """Each parameter, and for a trained one its gradient and two states."""
    return 4 * parameters + (4 if on_host else 12) * trained


def probability_bytes(batch: int, length: int, heads: int, layers: int) -> int:
    """A number for each pair of tokens, in each head of each layer."""
    return 4 * layers * batch * heads * length**2


def logits_bytes(batch: int, length: int, vocabulary: int, rows: int | None) -> int:
    """A number for each word of the vocabulary, at each token of a chunk."""
    tokens = batch * length
    return 4 * vocabulary * (tokens if rows is None else min(rows, tokens))


def layer_bytes(batch: int, length: int, width: int, inner: int, heads: int) -> int:
    """Ten tensors of the width, four of the inner width, four numbers a token, and the probabilities."""
    return 4 * batch * length * (10 * width + 4 * inner + 4) + probability_bytes(batch, length, heads, 1)
