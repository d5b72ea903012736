"""Text: files of sentences, a vocabulary of word pieces, token ids in a mapped file, and pairs of segments to learn
from."""

from minidl.data.text.sentences import Sentences

__all__ = ["Sentences"]
