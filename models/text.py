"""The shape of a batch of text, as the language models of this folder take it. Knows no model and no words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens a sequence, positions predicted in each, size of the vocabulary."""

    length: int = 128
    predictions: int = 20
    vocabulary: int = 30_522
