"""The shape of a batch of text, as the language models of this folder take it."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Text:
    """The sizes of a batch of text: tokens a sequence, positions predicted in each, words of the vocabulary."""

    length: int = 128
    predictions: int = 20
    vocabulary: int = 30_522

    def of_length(self, length: int | None) -> "Text":
        """The same with sequences of another length, of which as large a part is predicted; None: of this one."""
        length = length or self.length
        return replace(self, length=length, predictions=max(1, self.predictions * length // self.length))
