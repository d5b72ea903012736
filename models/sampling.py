"""Draw the next token of a language model from its scores, and seed the draws of a whole text."""

from collections.abc import Iterator
from contextlib import contextmanager

from minidl.errors import UserError
from minidl.ops import argmax, softmax, topk
from minidl.ops.creation import manual_seed, multinomial
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

SEEDS = "seeds"  # the runtime's counter of the random numbers that it has drawn


def next_tokens(scores: Tensor, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    """Return a token for each row of scores [N, vocabulary]: [N, 1].

    It is drawn from softmax(scores / temperature), among the ``top_k`` likeliest if given; temperature 0 returns the
    likeliest. Raises UserError for a negative temperature or a ``top_k`` below 1.
    """
    if temperature < 0 or top_k is not None and top_k < 1:
        raise UserError(f"a temperature must be at least 0 and top_k at least 1, not {temperature} and {top_k}")
    if temperature == 0:
        return argmax(scores, 1, keepdim=True)
    scores = scores.float() / temperature
    if top_k is not None:
        least = topk(scores, min(top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    return multinomial(softmax(scores), 1)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Make random numbers in the ``with`` block follow from ``seed``; after it the runtime's own sequence goes on.
    None: the block draws the current runtime's next numbers."""
    if seed is None:
        yield
        return
    runtime = current_runtime()
    before, drawn = runtime.seed, runtime.counters.get(SEEDS, 0)
    manual_seed(seed)
    try:
        yield
    finally:
        runtime.seed, runtime.counters[SEEDS] = before, drawn
