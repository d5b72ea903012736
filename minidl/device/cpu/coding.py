"""Compression of the pieces that are copied between an arena and host memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from minidl.device.codec import Codec
from minidl.errors import UserError
from minidl.kernels.cpu import zero_values


class Coder(Protocol):
    """An object that encodes and decodes bytes. Both threads of copies call the same coder at once."""

    def encode(self, piece: np.ndarray, out: np.ndarray) -> int:
        """Encode a piece into ``out``, of the same size; return the encoded bytes, or 0 if they are not fewer."""

    def decode(self, coded: np.ndarray, piece: np.ndarray) -> None:
        """Decode ``coded`` into ``piece``."""


class Blosc:
    """A coder that shuffles bytes and compresses them with LZ4."""

    def __init__(self) -> None:
        """Raises UserError without numcodecs."""
        try:
            from numcodecs.blosc import Blosc as Compressor
        except ImportError:
            raise UserError('codec blosc needs numcodecs (pip install "minidl[codec]"); zero-value needs nothing'
                            ) from None
        self._compressor = Compressor("lz4", clevel=1, shuffle=Compressor.SHUFFLE)

    def encode(self, piece: np.ndarray, out: np.ndarray) -> int:
        """Encode a piece into ``out``; return the encoded bytes, or 0 if they are not fewer."""
        words = piece if piece.size % zero_values.WORD else piece.view(np.uint32)  # it shuffles the bytes of each
        coded = np.frombuffer(self._compressor.encode(words), np.uint8)
        if coded.size >= piece.size:
            return 0
        out[:coded.size] = coded
        return coded.size

    def decode(self, coded: np.ndarray, piece: np.ndarray) -> None:
        """Decode ``coded`` into ``piece``."""
        self._compressor.decode(coded, piece)


def coder_of(codec: Codec) -> Coder:
    """Return the coder for a codec. Raises UserError if its library is missing."""
    return Blosc() if codec.name == "blosc" else zero_values


class Coding:
    """The coded pieces of the host pool: encodes copies out, decodes copies in, and remembers each piece's coded size.

    It handles one piece at a time in each direction. ``spared``: bytes that the codec has saved, out and in.
    """

    def __init__(self, coder: Coder) -> None:
        self.spared = [0, 0]
        self._coder = coder
        self._lengths: dict[int, int] = {}
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]

    def encoded(self, at: int, piece: np.ndarray) -> np.ndarray:
        """Return the bytes to write at host offset ``at``, encoded if that is shorter. Valid until the next call."""
        buffer = self._buffer(0, piece.size)
        nbytes = self._coder.encode(piece, buffer)
        if not nbytes:
            self._lengths.pop(at, None)
            return piece
        self._lengths[at] = nbytes
        self.spared[0] += piece.size - nbytes
        return buffer[:nbytes]

    def coded(self, at: int) -> np.ndarray | None:
        """Return a buffer for the encoded bytes at host offset ``at``, to be decoded; None if they are not encoded."""
        nbytes = self._lengths.get(at)
        return None if nbytes is None else self._buffer(1, nbytes)

    def decode(self, coded: np.ndarray, piece: np.ndarray) -> None:
        """Decode the bytes that were read for a piece."""
        self._coder.decode(coded, piece)
        self.spared[1] += piece.size - coded.size

    def _buffer(self, way: int, nbytes: int) -> np.ndarray:
        """Return the first ``nbytes`` of the direction's buffer. The next piece of that direction reuses them."""
        if self._buffers[way].size < nbytes:
            self._buffers[way] = np.empty(nbytes, np.uint8)
        return self._buffers[way][:nbytes]
