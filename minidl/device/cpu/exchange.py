"""Exchanges between ranks on NumPy arrays: the functions that run in place of a kernel for these operations.

Sums are formed in rank order, element by element: a library's own sum depends on the number of ranks and on the length.
Each rank gets the same part of all tensors, adds these up, and sends the sum to the others.

Before an exchange the ranks compare a description of it. If one is about to make another exchange, because it got
another batch or took another branch, all raise RanksDiverged; otherwise they would wait forever, or add up tensors that
do not belong together.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from minidl.parts.slice_rules import rows_of_rank
from minidl.ranks import Ranks

PIECE = 1 << 16  # elements that a rank adds up at once: what is under way takes k times as many

Add = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # (sum, one, other)

# Runs an operation across ranks on this rank's arrays, outputs first, and waits for all ranks. Raises RanksDiverged.
# Its keywords: ``add`` adds two arrays, ``ranks``, and the operation's own attributes.
Exchange = Callable[..., None]


def sum_ranks(y: np.ndarray, *parts: np.ndarray, add: Add, ranks: Ranks) -> None:
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


def sum_rows(y: np.ndarray, *parts: np.ndarray, add: Add, ranks: Ranks, slices: int) -> None:
    """Write this rank's rows of the sum of all ranks' tensors to y: the same bits as in ``sum_ranks``."""
    mine, total = [np.ascontiguousarray(x).reshape(-1) for x in parts], y.reshape(-1)
    rows = parts[0].shape[0]
    width = mine[0].size // max(1, rows)
    shares = [tuple(row * width for row in rows_of_rank(rows, slices, i, ranks.count)) for i in range(ranks.count)]
    for start in range(0, max(stop - first for first, stop in shares), PIECE):
        cuts = [(min(first + start, stop), min(first + start + PIECE, stop)) for first, stop in shares]
        found = ranks.swap([_bytes(np.concatenate([x[a:b] for x in mine])) for a, b in cuts])
        first, *others = (one for sent in found for one in np.split(sent.view(y.dtype), len(parts)))
        for other in others:
            if other.size:
                add(first, first, other)
        total[start:start + PIECE] = first


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
        x = arrays[0 if name.startswith("gather") else -1]  # the same on all ranks, but for the rows of a slice
        of = f"rows {how['rows']}" if "rows" in how else f"{len(arrays)} tensors"
        ranks.require_alike(f"{name} of {x.dtype.name}{list(x.shape)}, {of}, in {turn}")
        exchange(*arrays, add=add, ranks=ranks, **how)
    return run


EXCHANGES = {name: _checked(name, exchange) for name, exchange in (
    ("sum_ranks", sum_ranks), ("sum_rows", sum_rows), ("gather_ranks", gather_ranks), ("gather_rows_", gather_rows))}
