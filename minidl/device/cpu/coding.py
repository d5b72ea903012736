"""Encoding and decoding of the pieces that are copied between an arena and host memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from minidl.device.codec import Codec
from minidl.errors import UserError
from minidl.kernels.cpu import zero_values


class Coder(Protocol):
    """Encodes and decodes bytes, by functions that no thread has to itself."""

    def encode(self, piece: np.ndarray, out: np.ndarray) -> int:
        """Write a piece to ``out``, of as many bytes; how many that took, or 0 if they are not fewer."""

    def decode(self, coded: np.ndarray, piece: np.ndarray) -> None:
        """Write what was encoded to ``piece``."""


class Blosc:
    """Bytes shuffled, then LZ4."""

    def __init__(self) -> None:
        """Raises UserError without numcodecs."""
        try:
            from numcodecs.blosc import Blosc as Compressor
        except ImportError:
            raise UserError('codec blosc takes numcodecs (pip install "minidl[codec]"); zero-value takes nothing'
                            ) from None
        self._compressor = Compressor("lz4", clevel=1, shuffle=Compressor.SHUFFLE)

    def encode(self, piece: np.ndarray, out: np.ndarray) -> int:
        """As ``Coder``."""
        words = piece if piece.size % zero_values.WORD else piece.view(np.uint32)  # it shuffles the bytes of each
        coded = np.frombuffer(self._compressor.encode(words), np.uint8)
        if coded.size >= piece.size:
            return 0
        out[:coded.size] = coded
        return coded.size

    def decode(self, coded: np.ndarray, piece: np.ndarray) -> None:
        """As ``Coder``."""
        self._compressor.decode(coded, piece)


def coder_of(codec: Codec) -> Coder:
    """The coder that executes a codec. Raises UserError."""
    return Blosc() if codec.name == "blosc" else zero_values


class Coding:
    """Pieces on their way out and in, one at a time each way; and how many bytes each lies in, by where it begins.

    spared   bytes of copies out and in that have not been copied for that
    """

    def __init__(self, coder: Coder) -> None:
        self.spared = [0, 0]
        self._coder = coder
        self._lengths: dict[int, int] = {}
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def encoded(self, at: int, piece: np.ndarray) -> np.ndarray:
        """The bytes to write on the host for a piece: fewer bytes, or the piece itself. Valid until the next call."""
        buffer = self._buffer(0, piece.size)
        nbytes = self._coder.encode(piece, buffer)
        if not nbytes:
            self._lengths.pop(at, None)
            return piece
        self._lengths[at] = nbytes
        self.spared[0] += piece.size - nbytes
        return buffer[:nbytes]

    def coded(self, at: int) -> np.ndarray | None:
        """Where to read the piece to from that place, to be decoded; None if it lies there as it is."""
        nbytes = self._lengths.get(at)
        return None if nbytes is None else self._buffer(1, nbytes)

    def decode(self, coded: np.ndarray, piece: np.ndarray) -> None:
        """Write the piece that has been read."""
        self._coder.decode(coded, piece)
        self.spared[1] += piece.size - coded.size

    def _buffer(self, way: int, nbytes: int) -> np.ndarray:
        """So many bytes, which the next piece that goes this way is given, too."""
        if self._buffers[way].size < nbytes:
            self._buffers[way] = np.empty(nbytes, np.uint8)
        return self._buffers[way][:nbytes]
