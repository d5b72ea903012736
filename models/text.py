"""The shape of a batch of text for the language models of this folder."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """The sizes of a batch of text: tokens per sequence, predicted positions per sequence, words of the vocabulary."""

    length: int = 128
    predictions: int = 20
    vocabulary: int = 30_522

    def of_length(self, length: int | None) -> "Text":
        """Return the sizes for another sequence length, with the same share of predicted positions; None keeps it."""
        length = length or self.length
        return replace(self, length=length, predictions=max(1, self.predictions * length // self.length))

    def of_vocabulary(self, words: int) -> "Text":
        """Return the sizes for another number of words of the vocabulary."""
        return replace(self, vocabulary=words)
