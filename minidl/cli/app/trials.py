"""The outcome of a dry run of one setting, and the limit on the launches that all dry runs of a search may take."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from minidl.device import Device

REPLAY, PLAN = 10, 20_000  # the work of a launch that replays, and of a first plan


class OutOfWork(Exception):
    """An error: a trial has launched more kernels than its limit of work allows."""


class Work:
    """The work of twins in a search, and its limit, in launches of kernels.
    A launch that replays counts as REPLAY, because a policy ranks tensors for it. Seconds would differ by machine.

    replays  the most launches of a step, as a multiple of the calls of an unmanaged step
    spent    work so far
    calls    of an unmanaged step, by the number of slices
    """

    def __init__(self, limit: float = inf, replays: float = inf) -> None:
        self.limit, self.replays, self.spent = limit, replays, 0
        self.calls: dict[int, int] = {}

    @property
    def over(self) -> bool:
        """True if the work so far has reached the limit, so that nothing more may be tried."""
        return self.spent >= self.limit

    def count(self, device: Device, slices: int) -> Callable[[], None]:
        """Count the launches of a twin from now on. Return a function that must be called before each step.
        A launch raises OutOfWork if its step has launched too many."""
        launch, calls, launches = device.launch, self.calls.get(slices, inf), 0

        def launched(*arguments: Any, **named: Any) -> int:
            nonlocal launches
            launches += 1
            self.spent += 1 if launches <= calls else REPLAY
            if launches > self.replays * calls:
                raise OutOfWork
            return launch(*arguments, **named)

        def begin() -> None:
            nonlocal launches
            launches = 0

        device.launch = launched  # type: ignore[method-assign]
        return begin


@dataclass(frozen=True, slots=True)
class Shortage:
    """The operation ``op`` at which a step ran out of memory. ``host_full``: more host memory might have helped.
    ``slow``: the step did not fail, but replayed so much that the trial was ended."""

    op: str
    host_full: bool
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a few iterations on a twin; ``shortage`` None: they ran; bytes are those of the first two.
    ``host_nearly_full``: a full host limits what may leave the device, so later iterations may evict other tensors."""

    shortage: Shortage | None
    swapped_out_bytes: int
    recomputed_bytes: int
    host_nearly_full: bool
