"""Exchanges between ranks on NumPy arrays: the functions that run in place of a kernel for these operations.

Sums are formed in rank order, element by element: a library's own sum depends on the number of ranks and on the length.
Each rank gets the same part of all tensors, adds these up, and sends the sum to the others.
Before an exchange the ranks compare a description of it (``device.turns``).
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minidl.device.turns import text_of
from minidl.parts.slice_rules import rows_of_rank
from minidl.ranks import Ranks

PIECE = 1 << 16  # elements that a rank adds up at once: what is under way takes k times as many

Add = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # (sum, one, other)

# Runs an operation across ranks on this rank's arrays, outputs first, and waits for all ranks. Raises RanksDiverged.
# Its keywords: ``add`` adds two arrays, ``ranks``, and the operation's own attributes.
Exchange = Callable[..., None]


class _Joined:
    """Arrays of one dtype, each flat, as if they were one array."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._starts = [0, *accumulate(x.size for x in arrays)]
        self.size, self.dtype = self._starts[-1], arrays[0].dtype

    def pieces(self, start: int, stop: int) -> list[np.ndarray]:
        """Return views of the elements from ``start`` to before ``stop``, array after array."""
        return [x[max(start - first, 0):stop - first] for x, first in zip(self._arrays, self._starts, strict=False)
                if start < first + x.size and first < stop]

    def write(self, start: int, values: np.ndarray) -> None:
        """Overwrite the elements from ``start`` on."""
        for piece in self.pieces(start, start + values.size):
            piece[:], values = values[:piece.size], values[piece.size:]


def _slices(parts: Sequence[np.ndarray], each: int) -> list[list[np.ndarray]]:
    """Return the flat tensors of each of the ``each`` slices that this rank holds."""
    count = len(parts) // each
    flat = [np.ascontiguousarray(x).reshape(-1) for x in parts]
    return [flat[i:i + count] for i in range(0, len(flat), count)]


def _swapped_sum(ranks: Ranks, sent: Sequence[Sequence[np.ndarray]], each: int, dtype: np.dtype[Any], add: Add
                 ) -> np.ndarray:
    """Send the arrays ``sent[i]`` to rank i; return the sum of the arrays that all ranks, this one too, send here.
    sent[i]: pieces of this rank's ``each`` slices, one slice after the other, all slices with equally many elements.
    Slices are added with ``add``, element by element, rank after rank. dtype: that of all arrays."""
    found = ranks.swap([_bytes(np.concatenate(arrays)) if arrays else np.empty(0, np.uint8) for arrays in sent])
    first, *others = (one for of_rank in found for one in np.split(of_rank.view(dtype), each))
    for other in others:
        if other.size:
            add(first, first, other)
    return first


def sum_ranks(*arrays: np.ndarray, add: Add, ranks: Ranks, each: int) -> None:
    """Write the sums of all ranks' tensors to the outputs, which may be the tensors of the first slice.
    arrays: the outputs, then the tensors of each slice. each: the number of slices that a rank holds."""
    made = len(arrays) // (each + 1)
    total, mine = _Joined([y.reshape(-1) for y in arrays[:made]]), [_Joined(x) for x in _slices(arrays[made:], each)]
    step = PIECE * ranks.count
    for start in range(0, total.size, step):
        count = min(step, total.size - start)
        cuts = [start + count * i // ranks.count for i in range(ranks.count + 1)]
        shares = list(zip(cuts, cuts[1:], strict=False))
        sent = [[piece for x in mine for piece in x.pieces(a, b)] for a, b in shares]
        part = _swapped_sum(ranks, sent, each, total.dtype, add)
        into = np.empty(count, total.dtype)
        ranks.gather(_bytes(part), [(b - a) * into.itemsize for a, b in shares], _bytes(into))
        total.write(start, into)


def sum_rows(*arrays: np.ndarray, add: Add, ranks: Ranks, each: int) -> None:
    """Write this rank's rows of the sums of all ranks' tensors to the outputs: the same bits as in ``sum_ranks``."""
    made = len(arrays) // (each + 1)
    total, parts = _Joined([y.reshape(-1) for y in arrays[:made]]), arrays[made:]

    def rows(rank: int) -> list[_Joined]:
        cuts = [rows_of_rank(len(x), each * ranks.count, rank, ranks.count) for x in parts]
        return [_Joined(x) for x in _slices([x[a:b] for x, (a, b) in zip(parts, cuts, strict=True)], each)]

    mine = [rows(rank) for rank in range(ranks.count)]
    for start in range(0, max(one.size for one, *_ in mine), PIECE):
        sent = [[piece for x in one for piece in x.pieces(start, start + PIECE)] for one in mine]
        total.write(start, _swapped_sum(ranks, sent, each, total.dtype, add))


def gather_rows(*tensors: np.ndarray, add: Add, ranks: Ranks, slices: int) -> None:
    """Write to each tensor the rows that the other ranks hold, and send them those of this rank."""
    for x in tensors:
        cuts = [rows_of_rank(len(x), slices, i, ranks.count) for i in range(ranks.count)]
        row, (start, stop) = x.nbytes // len(x), cuts[ranks.rank]
        ranks.gather(_bytes(x[start:stop].copy()), [row * (b - a) for a, b in cuts], _bytes(x))


def gather_ranks(y: np.ndarray, x: np.ndarray, *, add: Add, ranks: Ranks, rows: tuple[int, ...]) -> None:
    """Write the rows of all ranks to y, in rank order. rows: how many each rank holds."""
    row = y.nbytes // max(1, sum(rows))
    ranks.gather(_bytes(np.ascontiguousarray(x)), [row * count for count in rows], _bytes(y))


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def _checked(name: str, exchange: Exchange) -> Callable[..., None]:
    """Return an exchange that first compares its turn, name, result and rows with those of the other ranks."""
    def run(*arrays: np.ndarray, add: Add, ranks: Ranks, turn: str, **how: Any) -> None:
        ranks.require_alike(text_of(name, arrays, turn=turn, **how))
        exchange(*arrays, add=add, ranks=ranks, **how)
    return run


EXCHANGES = {name: _checked(name, exchange) for name, exchange in (
    ("sum_ranks", sum_ranks), ("sum_rows", sum_rows), ("gather_ranks", gather_ranks), ("gather_rows_", gather_rows))}
