"""How often this iteration has accessed each tensor, and when first: counted from the log of calls when asked.

On-demand memory asks only when memory is short. So a call writes its line in the log, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Accesses:
    """The accesses of this iteration's tensors, by id.

    log  the calls of the iteration so far, as ``Tracker.log`` has them: (signature, algorithm, ids read, ids made)"""

    def __init__(self, log: Sequence[tuple[Any, Any, Iterable[int], Iterable[int]]]) -> None:
        self.log = log
        self._counted = 0  # calls of the log that are in the two dictionaries
        self._counts: dict[int, int] = {}
        self._firsts: dict[int, int] = {}

    def count(self, tensor_id: int) -> int:
        """Return how many calls of this iteration have accessed a tensor; the call that made it is one of them."""
        self.catch_up()
        return self._counts.get(tensor_id, 0)

    def first(self, tensor_id: int) -> int:
        """Return the position in this iteration, from 0, of the first call that accessed a tensor; -1 without one."""
        self.catch_up()
        return self._firsts.get(tensor_id, -1)

    def catch_up(self) -> None:
        """Count the calls that were logged since the last question."""
        for position in range(self._counted, len(self.log)):
            _, _, read, made = self.log[position]
            self.note(position, read, made)
        self._counted = len(self.log)

    def note(self, position: int, read: Iterable[int], made: Iterable[int]) -> None:
        """Count the call at a position of the iteration. read, made: the ids of its inputs and outputs."""
        for tensor_id in {*read, *made}:  # a tensor that one call uses twice is accessed once
            self._counts[tensor_id] = self._counts.get(tensor_id, 0) + 1
            self._firsts.setdefault(tensor_id, position)

    def clear(self) -> None:
        """Forget all accesses, as an iteration has ended and its log was emptied."""
        self._counted = 0
        self._counts.clear()
        self._firsts.clear()
