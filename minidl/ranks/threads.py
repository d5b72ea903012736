"""Ranks in threads of one process, each with a runtime of its own: for tests, and to try a program without MPI."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np

from minidl.ranks.group import NOTHING, Ranks, RanksDiverged

PATIENCE_S = 120.0  # for which a rank waits for the others


class _Meeting:
    """A point at which threads wait for each other and exchange values. Two barriers make it usable many times."""

    def __init__(self, count: int, patience_s: float) -> None:
        self._left: list[Any] = [None] * count
        self.ends: list[Callable[[], None]] = []  # called by ``end``
        self._came, self._went = Barrier(count, timeout=patience_s), Barrier(count, timeout=patience_s)

    def meet(self, rank: int, value: Any) -> list[Any]:
        """Wait until every rank has called this; return the values of all, in rank order.
        Raises RanksDiverged if a rank does not call it within the patience, or ``end`` was called."""
        self._left[rank] = value
        try:
            self._came.wait()
        except BrokenBarrierError:
            raise RanksDiverged(f"rank {rank}: another rank has failed, or does not come") from None
        found = list(self._left)
        with suppress(BrokenBarrierError):  # one has failed since: the next meeting tells of it
            self._went.wait()
        return found

    def end(self) -> None:
        """End the waits in ``meet``, now and later, with an error, and those that others have told of."""
        self._came.abort()
        self._went.abort()
        for end in self.ends:
            end()


class ThreadRanks(Ranks):
    """A rank that is a thread of this process."""

    def __init__(self, rank: int, count: int, tensors: _Meeting, words: _Meeting,
                 divide: str = NOTHING) -> None:
        super().__init__(rank, count, divide)
        self._tensors, self._words = tensors, words

    def gather(self, mine: np.ndarray, sizes: Sequence[int], into: np.ndarray) -> None:
        """Copy every rank's bytes, in rank order, to ``into``; ``mine`` are this rank's, ``sizes`` those of all.
        Raises RanksDiverged if a rank has failed, does not come in time, or sends another number of bytes."""
        found = self._tensors.meet(self.rank, mine.copy())
        if [part.size for part in found] != list(sizes):
            raise RanksDiverged(f"{self}: the ranks sent {[part.size for part in found]} bytes, not {list(sizes)}")
        np.concatenate(found, out=into)

    def swap(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send ``parts[i]`` to rank i; return copies of the parts for this rank, in the senders' order.
        Raises RanksDiverged if they differ in size."""
        found = [sent[self.rank] for sent in self._tensors.meet(self.rank, [part.copy() for part in parts])]
        if any(part.size != found[0].size for part in found):
            raise RanksDiverged(f"{self}: the ranks sent parts of {[part.size for part in found]} bytes")
        return found

    def agree(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order: the objects themselves, no copies.
        Raises RanksDiverged if a rank has failed, or does not come in time."""
        return self._words.meet(self.rank, value)

    def fail(self, code: int = 1, why: str = "") -> None:
        """End the waits of all ranks, which then raise RanksDiverged. ``code`` and ``why`` are not used."""
        self._tensors.end()
        self._words.end()

    def when_failed(self, end: Callable[[], None]) -> None:
        """Have ``end`` called once a rank has failed."""
        self._tensors.ends.append(end)


def threads(count: int, *, patience_s: float = PATIENCE_S, divide: str = NOTHING) -> list[ThreadRanks]:
    """Return ``count`` ranks, one for each thread of a program.
    Raises UserError for a count below 1 or another ``divide``.
    patience_s: seconds for which a rank waits for the others before it raises RanksDiverged.
    divide: "nothing", optimizer "states", or "gradients" and states, of which each rank keeps its part."""
    tensors, words = _Meeting(max(count, 1), patience_s), _Meeting(max(count, 1), patience_s)
    return [ThreadRanks(rank, count, tensors, words, divide) for rank in range(max(count, 1))]
