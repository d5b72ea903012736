"""A race detector for bytes, without times: it checks that conflicting accesses are ordered by waits.

Timing hides a missing wait whenever the earlier work happens to be over. So order is checked without it: each stream,
and the host, has a vector clock of the positions that every stream has certainly reached (Fidge 1988, Mattern 1989).
Two pieces of work that touch the same bytes, one of them writing, must be ordered by it; otherwise a ``Violation``
names them, in whichever order they ran.

Knows streams, positions and ranges of bytes; no operation, no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minidl.device.clock import COPY_OUT, STREAM_NAMES, Timed, VirtualClock

NAMES = (*STREAM_NAMES, "exchange")  # the last one for exchanges between GPUs, if there are several ranks
STREAMS = range(len(NAMES))
NOTHING, SPOILED = 0, -1  # values of unwritten or freed bytes; of copies of overwritten bytes


class Violation(AssertionError):
    """The engine did something that no right engine does."""


class WatchedClock(VirtualClock):
    """The virtual clock, with a vector clock for each stream.

    ``known[s][t]`` is the position that stream t has certainly reached before the next work of stream s; ``host_known``
    the positions that the host knows to be reached.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known = [[0] * len(STREAMS) for _ in STREAMS]
        self.host_known = [0] * len(STREAMS)
        self._after: list[list[list[int]]] = [[[0] * len(STREAMS)] for _ in STREAMS]  # by stream, position

    def issue(self, stream: int, seconds: float, effect: Callable[[], None] | None = None, *,
              at_end: bool = False, timed: Timed = None) -> int:
        position = super().issue(stream, seconds, effect, at_end=at_end, timed=timed)
        known = self.before(stream)
        known[stream] = position
        self._after[stream].append(list(known))
        return position

    def before(self, stream: int) -> list[int]:
        """Return the positions that are certain before a stream's next work."""
        return _raise(self.known[stream], self.host_known)

    def wait(self, stream: int, on: int, position: int) -> None:
        super().wait(stream, on, position)
        _raise(self.known[stream], self._after[on][position])

    def synchronize(self, stream: int, position: int) -> None:
        super().synchronize(stream, position)
        _raise(self.host_known, self._after[stream][position])


def _raise(known: list[int], by: Sequence[int]) -> list[int]:
    for stream in STREAMS:
        if by[stream] > known[stream]:
            known[stream] = by[stream]
    return known


class Cells:
    """Bytes in cells of ``grain``: the position of each stream's last read and write of a cell, and its value.

    spoil  called with the position of a copy out whose source was overwritten too early; None: that is an error
    """

    def __init__(self, name: str, nbytes: int, grain: int, spoil: Callable[[int], None] | None = None) -> None:
        self.spoil = spoil
        self.name = name
        self.grain = grain
        count = -(-nbytes // grain)
        self.values = [NOTHING] * count
        self._reads = [[0] * count for _ in STREAMS]
        self._writes = [[0] * count for _ in STREAMS]
        self._latest = [0] * len(STREAMS)  # position of each stream's last read or write of any cell

    def span(self, offset: int, nbytes: int) -> slice:
        """Return the cells of a range of bytes."""
        return slice(offset // self.grain, -(-(offset + nbytes) // self.grain))

    def read(self, cells: slice, stream: int, known: Sequence[int], what: str) -> None:
        """Check that a stream's next work (-1: the host) may read cells: all writes to them must be over."""
        self._ordered(self._writes, cells, stream, known, what, "written")
        if stream >= 0:
            self._latest[stream] = position = known[stream] + 1
            self._reads[stream][cells] = [position] * (cells.stop - cells.start)

    def write(self, cells: slice, stream: int, known: Sequence[int], value: int, what: str) -> None:
        """Check that a stream's next work may write cells: all reads and writes of them must be over."""
        self._ordered(self._writes, cells, stream, known, what, "written")
        if self.spoil is not None and stream != COPY_OUT and self._latest[COPY_OUT] > known[COPY_OUT]:
            for position in set(self._reads[COPY_OUT][cells]):
                if position > known[COPY_OUT]:
                    self.spoil(position)
                    known = [*known[:COPY_OUT], position, *known[COPY_OUT + 1:]]
        self._ordered(self._reads, cells, stream, known, what, "read")
        count = cells.stop - cells.start
        self._latest[stream] = position = known[stream] + 1
        self._writes[stream][cells] = [position] * count
        self.values[cells] = [value] * count

    def _ordered(self, last: list[list[int]], cells: slice, stream: int, known: Sequence[int], what: str,
                 done: str) -> None:
        for other in range(len(known)):
            if (other != stream and self._latest[other] > known[other]
                    and max(last[other][cells], default=0) > known[other]):
                raise Violation(f"{what} does not wait until the {self.name}'s cells {cells.start}..{cells.stop} have "
                                f"been {done} by {NAMES[other]} {max(last[other][cells])}: it has waited for "
                                f"{known[other]}")

    def holds(self, cells: slice, value: int) -> bool:
        """Return True if all cells hold a value."""
        return self.values[cells].count(value) == cells.stop - cells.start

    def only_value(self, cells: slice, what: str) -> int:
        """Return the one value that all cells hold."""
        values = set(self.values[cells])
        if len(values) > 1:
            raise Violation(f"{what}: the {self.name}'s cells {cells.start}..{cells.stop} hold parts of {len(values)} "
                            "values")
        return values.pop() if values else NOTHING
