"""The agreement of ranks: each knows where the others are in the program, and all follow the decisions of rank 0.

Every exchange carries a *turn*: its iteration and its number in it, and for the first one of an iteration also a digest
of the plans in force. The ends of iterations and of the run take turns, too. All turns have one order on each rank, so
a rank that leaves one out, or has failed, meets another turn of the others: all of them raise RanksDiverged.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from minidl.ranks.group import Ranks, RanksDiverged

T = TypeVar("T")
MOST_BATCHES = 4  # of different sizes that a turn names


class Alone:
    """The agreement of one device, which has no other rank to ask.

    ranks  the ranks that agree; None for one device
    plans  a digest of the plans in force, which ranks compare"""

    ranks: Ranks | None = None
    plans = ""

    def least(self, *sizes: int) -> tuple[int, ...]:
        """Return for each of some sizes the smallest of any rank."""
        return sizes

    def sees(self, batch: int) -> None:
        """Called when the program uploads a batch of that many examples."""

    def turn(self) -> str:
        """Return the text of the next exchange, which all ranks compare before they make it."""
        return ""

    def end_iteration(self, finish: Callable[[], None], *, failed: bool) -> None:
        """Called when an iteration has ended. finish: waits for the device. failed: an error has ended it."""

    def end_run(self) -> None:
        """Called when the program leaves its runtime without an error."""

    def reports(self, own: T) -> Sequence[T]:
        """Return what each rank reports of the iteration that has ended, in rank order: here ``own``."""
        return (own,)

    def decide(self, make: Callable[[], T]) -> T:
        """Return ``make()`` of the first rank, on all ranks."""
        return make()

    def digest(self, facts: Iterable[object]) -> str:
        """Return a short text for a sequence of facts that ranks compare; an empty one where none compares it."""
        return ""


ALONE = Alone()


class Consensus(Alone):
    """The agreement of one runtime's rank with the other ranks. iteration: number of iterations that have ended."""

    ranks: Ranks

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.iteration = 0
        self._entered = True  # for the first time, as all ranks do
        self._exchanges = 0  # in this iteration so far
        self._batches: set[int] = set()  # the numbers of examples since the last turn
        self._shared = False  # the iteration that has ended had exchanges, so all ranks have ended it
        self._failed = ""  # why an earlier iteration failed, until the ranks have compared it

    def least(self, *sizes: int) -> tuple[int, ...]:
        """Return for each of some sizes the smallest of any rank. All ranks call this."""
        return tuple(map(min, zip(*self.ranks.agree(sizes), strict=True)))

    def sees(self, batch: int) -> None:
        """Note that this rank's program uploads a batch of ``batch`` examples, for the next exchange of this iteration.
        There the ranks compare the numbers, and raise RanksDiverged if they differ. The iteration's end drops them."""
        self._batches.add(batch)

    def turn(self) -> str:
        """Return the text of the next exchange, which all ranks compare before they make it.
        The text names the sizes of the batches since the last exchange: the shape of a sum does not show them."""
        text = f"iteration {self.iteration}, exchange {self._exchanges}"
        if not self._exchanges and self.plans:
            text += f", plans {self.plans}"
        self._exchanges += 1
        if self._batches:
            text += f", a batch of {' and '.join(map(str, sorted(self._batches)[:MOST_BATCHES]))}"
            self._batches.clear()
        return text + self._taken_failure()

    def end_iteration(self, finish: Callable[[], None], *, failed: bool) -> None:
        """Compare the number of exchanges with the other ranks, after the device has made them.

        An iteration without an exchange is this rank's own, and does not count. One that failed, with the error that
        is being handled, waits for no rank: the others learn it at this rank's next turn, and go on only if theirs has
        failed alike.
        finish: waits for the device. Raises RanksDiverged if the numbers differ."""
        if failed:
            self._failed = type(sys.exc_info()[1]).__name__
        self._shared = self._exchanges > 0 and not failed
        if self._shared:
            finish()
            self.ranks.require_alike(f"the end of iteration {self.iteration} after {self._exchanges} exchanges"
                                     + self._taken_failure())
        self.iteration += self._shared or failed
        self._exchanges = 0
        self._batches.clear()

    def end_run(self) -> None:
        """Wait until all ranks leave their runtimes. Raises RanksDiverged if one is elsewhere in the program.
        A rank that has entered its runtime again waits only if it has made an exchange since."""
        if self._entered or self.iteration or self._exchanges:
            self._entered = False
            self.ranks.require_alike(f"the end of the run, iteration {self.iteration} after {self._exchanges} exchanges"
                                     + self._taken_failure())
            self.iteration = self._exchanges = 0

    def _taken_failure(self) -> str:
        failed, self._failed = self._failed, ""
        return f", after a failed iteration ({failed})" if failed else ""

    # Decisions ------------------------------------------------------------------------------------------------
    def reports(self, own: T) -> Sequence[T]:
        """Return all ranks' reports, in rank order; () after an iteration that failed or had no exchange."""
        return self.ranks.agree(own) if self._shared else ()

    def decide(self, make: Callable[[], T]) -> T:
        """Return ``make()`` of rank 0, which alone calls it; the others wait.
        An error of ``make`` is raised on all ranks, on the others as RanksDiverged."""
        if self.ranks.rank:
            made, error = self.ranks.agree(None)[0]
            if error:
                raise RanksDiverged(f"rank 0 has failed: {error}")
            return made  # type: ignore[no-any-return]
        try:
            made = make()
        except Exception as error:
            self.ranks.agree((None, f"{type(error).__name__}: {error}"))
            raise
        self.ranks.agree((made, ""))
        return made

    def digest(self, facts: Iterable[object]) -> str:
        """Return an eight-digit hash of the texts of some facts, which ranks compare."""
        found = blake2b(digest_size=4)
        for fact in facts:
            found.update(repr(fact).encode())
        return found.hexdigest()
