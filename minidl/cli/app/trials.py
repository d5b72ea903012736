"""The outcome of a trial (a dry run of one setting), and a limit on the work of all trials of a search."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from minidl.device import Device

REPLAY, PLAN = 10, 20_000  # the work of a launch that replays, and of a first plan
WALKED = 100  # calls that exact prices look at take as long as one launch


class OutOfWork(Exception):
    """Raised when a step, or a search that has a limit, launches more kernels than allowed."""


class Work:
    """The work that the trials of a search have done, and its limit.
    Its unit is one kernel launch; a launch beyond a step's own calls is a replay and counts as REPLAY (10), because the
    policy ranks tensors for it; a first plan counts as PLAN (20,000). Of the calls that a policy's exact prices look at
    (``memory.neighbourhood.Walks``), WALKED (100) count as 1. Seconds would differ by machine.

    replays  the most launches of one step, as a multiple of the calls of an unmanaged step
    within   True if OutOfWork ends what reaches the limit; False if it ends only trials with exact prices, and the
             search is asked to end by itself
    spent    the work so far
    calls    number of slices -> number of calls of an unmanaged step
    """

    def __init__(self, limit: float = inf, replays: float = inf, *, within: bool = False) -> None:
        self.limit, self.replays, self.within, self.spent = limit, replays, within, 0
        self.calls: dict[int, int] = {}

    @property
    def over(self) -> bool:
        """True if the work so far has reached the limit: no further trial may start."""
        return self.spent >= self.limit

    def go_on(self) -> None:
        """Raise OutOfWork if the limit is reached, and is one that ends trials (``within``)."""
        if self.within and self.over:
            raise OutOfWork

    def count(self, device: Device, slices: int, walked: Callable[[], int], *, trial: bool = False
              ) -> Callable[[], None]:
        """Count the work on a twin from now on. Return a function that must be called before each step.
        A launch raises OutOfWork if its step has made too many; in a ``trial`` with exact prices, also at the limit.
        slices: their number on this twin, for ``calls``. walked: returns how many calls its prices have looked at."""
        launch, calls, launches, walks = device.launch, self.calls.get(slices, inf), 0, 0

        def launched(*arguments: Any, **named: Any) -> int:
            nonlocal launches, walks
            launches += 1
            before, walks = walks, walked() // WALKED
            self.spent += (1 if launches <= calls else REPLAY) + walks - before
            if launches > self.replays * calls or trial and walks and self.over:
                raise OutOfWork
            self.go_on()
            return launch(*arguments, **named)

        def begin() -> None:
            nonlocal launches
            launches = 0

        device.launch = launched  # type: ignore[method-assign]
        return begin


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why a trial ended: a step ran out of memory in operation ``op``.
    ``host_full``: more host memory might have helped. ``slow``: there was no error, but so many replays that the
    trial was stopped. ``refused``: the policy's message, if it refuses a step that its plan does not fit."""

    op: str
    host_full: bool
    slow: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a few iterations on a twin. ``shortage`` None: all ran.
    Bytes are counted over the first two iterations. ``host_nearly_full``: host memory limits the swap-outs, so that
    later iterations may evict other tensors."""

    shortage: Shortage | None
    swapped_out_bytes: int
    recomputed_bytes: int
    host_nearly_full: bool
