"""Exchanges between ranks on a simulated device, and the link that they share with copies to and from the host.

Sums, and exchanges of updated rows, run beside the compute stream, one after the other. The first work that uses their
memory waits for them (``in_use``). The end of an exchange is computed only then, because copies that begin while it
runs take their share of the link (``Profile.shared_bandwidth``), and the exchange has the rest.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from math import inf

from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, VirtualClock
from minidl.device.contract import Operand, bytes_of
from minidl.device.in_use import InUse
from minidl.device.profiles import Profile

BESIDE = frozenset({"sum_ranks", "sum_rows", "gather_rows_"})  # operations that run beside the compute stream
EXCHANGES = BESIDE | {"gather_ranks"}


class SharedLink:
    """The copies on a device's own link, and how long exchanges beside them take."""

    def __init__(self, profile: Profile) -> None:
        self._left: dict[int, float] = {}  # by direction: the share of the link that a copy leaves to an exchange
        if whole := profile.shared_bandwidth:
            for stream, copied in ((COPY_OUT, profile.link_out_bandwidth), (COPY_IN, profile.link_in_bandwidth)):
                self._left[stream] = max(1.0 - copied / whole, 1e-3)
        self._copies: dict[int, deque[tuple[float, float]]] = {stream: deque() for stream in self._left}

    def copied(self, stream: int, seconds: float, end: float) -> None:
        """Note a copy on a stream that takes ``seconds`` until ``end``. A stream's copies are noted first to last."""
        if stream in self._copies:
            self._copies[stream].append((end - seconds, end))

    def end_of(self, start: float, seconds: float) -> float:
        """Return when an exchange ends that begins at ``start`` and would take ``seconds`` of the whole link."""
        now = start
        while seconds > 0.0:
            share, until = 1.0, inf
            for stream, copies in self._copies.items():
                for first, last in copies:
                    if first <= now < last:
                        share, until = min(share, self._left[stream]), min(until, last)
                        break
                    if first > now:
                        until = min(until, first)
                        break
            if now + seconds / share <= until:
                return now + seconds / share
            seconds -= (until - now) * share
            now = until
        return now

    def forget_before(self, time: float) -> None:
        """Forget the copies that have ended by ``time``."""
        for copies in self._copies.values():
            while copies and copies[0][1] <= time:
                copies.popleft()


class Beside:
    """The exchanges on their way beside the compute stream. in_use: the bytes of the arena that they use.
    spans: when exchanges began and ended, by number, as soon as that is computed; None: not kept."""

    def __init__(self, clock: VirtualClock, link: SharedLink) -> None:
        self.clock = clock
        self.link = link
        self.in_use = InUse()
        self._waiting: deque[tuple[float, float]] = deque()  # (time at which it may begin, seconds), not computed yet
        self._ends: list[float] = []  # of those computed, in this iteration
        self._first = 1  # the number of the first of them
        self._latest = 0.0  # when the last of them ends
        self.spans: dict[int, tuple[float, float]] | None = None

    def start(self, seconds: float, operands: Iterable[Operand]) -> None:
        """Start an exchange of ``seconds`` on these operands, after earlier exchanges and the work launched so far."""
        self._waiting.append((self.clock.now(), seconds))
        self.in_use.latest += 1
        for offset, nbytes in map(bytes_of, operands):
            self.in_use.use(offset, offset + nbytes)

    def at_once(self, seconds: float) -> float:
        """Return the seconds from now to the end of an exchange for which the compute stream waits.
        It begins when earlier ones have ended, and would take ``seconds`` of the whole link."""
        now = self.clock.now()
        self._latest = self.link.end_of(max(now, self._end_of(self.in_use.latest)), seconds)
        return self._latest - now

    def hold(self, stream: int, offset: int, nbytes: int) -> None:
        """Make a stream wait for the exchanges that use these bytes, if there are any."""
        if number := self.in_use.needed(stream, offset, offset + nbytes):
            self.clock.hold(stream, self._end_of(number))

    def hold_for(self, operands: Iterable[Operand]) -> None:
        """Make the compute stream wait for the exchanges that use these operands' memory."""
        for operand in operands:
            self.hold(COMPUTE, *bytes_of(operand))

    def _end_of(self, number: int) -> float:
        """Return when an exchange ends, beside the copies issued so far; no later copy changes this."""
        while self._first + len(self._ends) <= number:
            ready, seconds = self._waiting.popleft()
            begins = max(self._latest, ready)
            self._latest = self.link.end_of(begins, seconds)
            if self.spans is not None:
                self.spans[self._first + len(self._ends)] = begins, self._latest
            self._ends.append(self._latest)
        return self._ends[number - self._first] if number >= self._first else 0.0

    def forget_ended(self) -> None:
        """Forget the exchanges that have ended, and copies that no exchange could meet any more."""
        now = self.clock.now()
        ended = bisect_right(self._ends, now)
        del self._ends[:ended]
        self._first += ended
        self.in_use.forget(self._first - 1)
        self.link.forget_before(self._latest if self._waiting else now)
