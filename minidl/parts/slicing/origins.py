"""Records which layer made each queued call, since reports show tensors by layer and queued calls run later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidl.executor import Executor


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a queued call.

    within: the name of the layer that made the call; "" if none did. graded: True if gradients were enabled then.
    """

    within: str
    graded: bool


class Origins:
    """The origins of one executor's queued calls.

    within   the name of the layer that the program is in now; a report sets it
    made     (name of a layer, ids of temporary tensors that its calls have made), in the order in which the calls ran
    """

    def __init__(self, executor: Executor) -> None:
        self.within = ""
        self.made: list[tuple[str, range]] = []
        self._executor = executor
        self._carried: Origin | None = None

    def here(self) -> Origin:
        """Return the origin of a call that the program makes now."""
        return Origin(self.within, self._executor.grad_enabled)

    @property
    def graded(self) -> bool:
        """True if gradients were enabled when the call that runs now was queued."""
        return self._carried.graded if self._carried is not None else self._executor.grad_enabled

    def carrying_out(self, origin: Origin) -> _Carrying:
        """Return a context manager: queued calls that run inside its ``with`` block have this origin."""
        return _Carrying(self, origin)

    def begin(self, origin: Origin) -> int:
        """Note that calls of ``origin`` run from now on; returns the id that the next temporary tensor will have."""
        self._carried = origin
        return self._executor.tracker.temporaries

    def end(self, origin: Origin, first: int) -> None:
        """Note that the calls of ``origin`` have run. first: the id that ``begin`` returned."""
        self._carried = None
        if origin.within:
            self.made.append((origin.within, range(first, self._executor.tracker.temporaries)))


class _Carrying:
    """The context manager of ``carrying_out``. It is a class because one made from a generator is slower."""

    __slots__ = ("first", "origin", "origins")

    def __init__(self, origins: Origins, origin: Origin) -> None:
        self.origins, self.origin, self.first = origins, origin, 0

    def __enter__(self) -> None:
        self.first = self.origins.begin(self.origin)

    def __exit__(self, *raised: object) -> None:
        self.origins.end(self.origin, self.first)
