"""Bytes without the words of 4 that are zero: a bit a word, then the words that are not, then what is no whole word.

Words are compared as integers, so -0.0 and every NaN keep their bits. Knows bytes.
"""

import numpy as np

from minidl.outside.numba_cache import njit

WORD = 4  # bytes


@njit(cache=True, nogil=True)
def _count(words: np.ndarray) -> int:
    """How many are not zero."""
    found = 0
    for n in range(len(words)):
        found += words[n] != 0
    return found


@njit(cache=True, nogil=True)
def _encode(words: np.ndarray, out: np.ndarray) -> None:
    """Write bits and words; ``out`` has room for a word more than there are."""
    at = (len(words) + 7) // 8
    for n in range(0, len(words), 8):
        bits = 0
        for i in range(min(8, len(words) - n)):
            word = words[n + i]
            out[at] = word & 255  # also of a zero, whose place the next word takes
            out[at + 1] = word >> 8 & 255
            out[at + 2] = word >> 16 & 255
            out[at + 3] = word >> 24
            there = word != 0
            bits |= there << i
            at += WORD * there
        out[n // 8] = bits


@njit(cache=True, nogil=True)
def _decode(coded: np.ndarray, words: np.ndarray) -> None:
    """Read bits and words back."""
    at = (len(words) + 7) // 8
    for n in range(len(words)):
        if coded[n // 8] >> (n & 7) & 1:
            words[n] = (np.uint32(coded[at]) | np.uint32(coded[at + 1]) << 8 | np.uint32(coded[at + 2]) << 16
                        | np.uint32(coded[at + 3]) << 24)
            at += WORD
        else:
            words[n] = 0


def encode(piece: np.ndarray, out: np.ndarray) -> int:
    """Write bytes without their zeros to ``out``, of as many; how many that took, or 0 if they are not fewer, or do not
    begin at a word."""
    whole = piece.size // WORD * WORD
    if piece.ctypes.data % WORD:
        return 0
    words = piece[:whole].view(np.uint32)
    coded = (len(words) + 7) // 8 + WORD * int(_count(words))
    nbytes = coded + piece.size - whole
    if nbytes + WORD > piece.size:
        return 0
    _encode(words, out)
    out[coded:nbytes] = piece[whole:]
    return nbytes


def decode(coded: np.ndarray, piece: np.ndarray) -> None:
    """Write what ``encode`` was given to a piece that begins at a word, too."""
    whole = piece.size // WORD * WORD
    _decode(coded, piece[:whole].view(np.uint32))
    piece[whole:] = coded[coded.size - (piece.size - whole):]
