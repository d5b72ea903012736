"""Exchanges between ranks on NumPy arrays: the functions that run in place of a kernel for these operations.

Sums are formed in rank order, element by element: a library's own sum depends on the number of ranks and on the length.
Each rank gets the same part of all tensors, adds these up, and sends the sum to the others.

Before an exchange the ranks compare a description of it. If one is about to make another exchange, because it got
another batch or took another branch, all raise RanksDiverged; otherwise they would wait forever, or add up tensors that
do not belong together.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from minidl.ranks import Ranks

PIECE = 1 << 16  # elements that a rank adds up at once: what is under way takes k times as many

Add = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # (sum, one, other)


class Exchange(Protocol):
    """A function that runs an operation across ranks: it computes y from the tensors of this rank and of the others."""

    def __call__(self, y: np.ndarray, *parts: np.ndarray, add: Add, ranks: Ranks, rows: tuple[int, ...] = ()) -> None:
        """Compute y on every rank at the same call; waits for all ranks. Raises RanksDiverged.
        parts: this rank's tensors. add: adds two arrays. rows: for a gather, the rows that each rank holds."""


def sum_ranks(y: np.ndarray, *parts: np.ndarray, add: Add, ranks: Ranks, rows: tuple[int, ...] = ()) -> None:
    """Write the sum of all ranks' tensors to y, which may be the first of them."""
    mine, total = [np.ascontiguousarray(x).reshape(-1) for x in parts], y.reshape(-1)
    step = PIECE * ranks.count
    for start in range(0, total.size, step):
        pieces, into = [x[start:start + step] for x in mine], total[start:start + step]
        cuts = [into.size * i // ranks.count for i in range(ranks.count + 1)]
        shares = list(zip(cuts, cuts[1:], strict=False))
        found = ranks.swap([_bytes(np.concatenate([x[a:b] for x in pieces])) for a, b in shares])
        first, *others = (one for sent in found for one in np.split(sent.view(y.dtype), len(parts)))
        for other in others:
            if other.size:
                add(first, first, other)
        ranks.gather(_bytes(first), [(b - a) * y.itemsize for a, b in shares], _bytes(into))


def gather_ranks(y: np.ndarray, *parts: np.ndarray, add: Add, ranks: Ranks, rows: tuple[int, ...] = ()) -> None:
    """Write the rows of all ranks to y, in rank order."""
    row = y.nbytes // max(1, sum(rows))
    ranks.gather(_bytes(np.ascontiguousarray(parts[0])), [row * count for count in rows], _bytes(y))


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def _checked(name: str, exchange: Exchange) -> Callable[..., None]:
    """Return an exchange that first compares its turn, name, result and rows with those of the other ranks."""
    def run(y: np.ndarray, *parts: np.ndarray, add: Add, ranks: Ranks, turn: str, rows: tuple[int, ...] = ()) -> None:
        of = f"rows {rows}" if rows else f"{len(parts)} a rank"
        ranks.require_alike(f"{name} of {y.dtype.name}{list(y.shape)}, {of}, in {turn}")
        exchange(y, *parts, add=add, ranks=ranks, rows=rows)
    return run


EXCHANGES = {name: _checked(name, exchange) for name, exchange in (
    ("sum_ranks", sum_ranks), ("gather_ranks", gather_ranks))}
