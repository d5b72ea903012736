"""Text: files of sentences, a vocabulary of word pieces, token ids in a memory-mapped file, pairs, windows."""

from minidl.data.text.sentences import Sentences
from minidl.data.text.token_file import Windows

__all__ = ["Sentences", "Windows"]
