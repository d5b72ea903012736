"""Bytes of an arena that exchanges between ranks use beside the compute stream, and who has waited for them.

Exchanges have numbers, from 1, and run in this order; so who waits for one has waited for all before it. Whatever
touches bytes later waits for the last exchange that uses them: a kernel that reads a sum, a copy to the host, and also
the next owner of bytes that were freed meanwhile. So blocks and tensors need no record of exchanges.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Protocol


class InUse:
    """Ranges of bytes, each with the last exchange that uses it.

    latest  the number of the last exchange
    waited  the number of the last exchange that each stream has waited for"""

    def __init__(self) -> None:
        self.latest = 0
        self.waited = [0, 0, 0]
        self._ranges: list[tuple[int, int, int]] = []  # (start, stop, exchange), by address; no two overlap

    def use(self, start: int, stop: int) -> None:
        """Note that the latest exchange uses the bytes from ``start`` to before ``stop``, if there are any."""
        if start == stop:
            return
        first, last = self._met(start, stop)
        rest = [(a, min(b, start), number) for a, b, number in self._ranges[first:last] if a < start]
        rest.append((start, stop, self.latest))
        rest += [(max(a, stop), b, number) for a, b, number in self._ranges[first:last] if b > stop]
        self._ranges[first:last] = rest

    def needed(self, stream: int, start: int, stop: int) -> int:
        """Return the exchange, 0 for none, that a stream must wait for before it touches these bytes.
        The stream then counts as one that has waited for it."""
        first, last = self._met(start, stop)
        number = max([number for _, _, number in self._ranges[first:last]], default=0)
        if number <= self.waited[stream]:
            return 0
        self.waited[stream] = number
        return number

    def forget(self, number: int) -> None:
        """Forget the exchanges up to this one, which have ended."""
        self._ranges = [each for each in self._ranges if each[2] > number]

    def __len__(self) -> int:
        return len(self._ranges)

    def _met(self, start: int, stop: int) -> tuple[int, int]:
        """Return the positions [first, last) of the ranges that have bytes in [start, stop)."""
        first = bisect_right(self._ranges, start, key=lambda each: each[1])
        return first, bisect_left(self._ranges, stop, first, key=lambda each: each[0])


class Exchanging(Protocol):
    """A device's exchanges beside its compute stream."""

    in_use: InUse

    @property
    def spans(self) -> Mapping[int, tuple[float, float]] | None:
        """When exchanges began and ended, by number, as far as that is known; None: not measured."""
