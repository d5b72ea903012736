"""Text: files of sentences, a vocabulary of word pieces, token ids in a memory-mapped file, and pairs of segments."""

from minidl.data.text.sentences import Sentences

__all__ = ["Sentences"]
