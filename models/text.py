"""The shape of a batch of text, as the language models of this folder take it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """The sizes of a batch of text: tokens a sequence, positions predicted in each, words of the vocabulary."""

    length: int = 128
    predictions: int = 20
    vocabulary: int = 30_522
