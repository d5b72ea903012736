"""The smallest GPT that has all of its parts, and its text."""

from models.gpt import GPTConfig
from models.text import Text

TINY = GPTConfig(2, 32, 4, vocab_size=40, n_positions=24)
TEXT = Text(length=24, predictions=24, vocabulary=40)
