"""The smallest GPT with all its parts, and its text."""

from minidl.models.gpt import GPTConfig
from minidl.models.text import Text

TINY = GPTConfig(2, 32, 4, vocab_size=40, n_positions=24)
TEXT = Text(length=24, predictions=24, vocabulary=40)
