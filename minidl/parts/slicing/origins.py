"""The layers from which queued calls come: reports show tensors by layer. Knows names; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidl.executor import Executor


@dataclass(frozen=True, slots=True)
class Origin:
    """``within``: the layer that called an operation; "" for none. ``graded``: gradients were enabled."""

    within: str
    graded: bool


class Origins:
    """The origins of one executor's calls.

    within   the layer that the program is in; a report sets it
    made     layers, each with the ids of temporary tensors that its calls made when they ran
    """

    def __init__(self, executor: Executor) -> None:
        self.within = ""
        self.made: list[tuple[str, range]] = []
        self._executor = executor
        self._carried: Origin | None = None

    def here(self) -> Origin:
        """The origin of a call that is made now."""
        return Origin(self.within, self._executor.grad_enabled)

    @property
    def graded(self) -> bool:
        """True if gradients were enabled when the call that runs now was queued."""
        return self._carried.graded if self._carried is not None else self._executor.grad_enabled

    def carrying_out(self, origin: Origin) -> _Carrying:
        """The calls inside have this origin."""
        return _Carrying(self, origin)

    def begin(self, origin: Origin) -> int:
        """Begin to run calls of an origin; returns the id of the next temporary tensor."""
        self._carried = origin
        return self._executor.tracker.temporaries

    def end(self, origin: Origin, first: int) -> None:
        """End to run calls of an origin."""
        self._carried = None
        if origin.within:
            self.made.append((origin.within, range(first, self._executor.tracker.temporaries)))


class _Carrying:
    """A context; one made by a generator takes longer, and there is one for each call of each slice."""

    __slots__ = ("first", "origin", "origins")

    def __init__(self, origins: Origins, origin: Origin) -> None:
        self.origins, self.origin, self.first = origins, origin, 0

    def __enter__(self) -> None:
        self.first = self.origins.begin(self.origin)

    def __exit__(self, *raised: object) -> None:
        self.origins.end(self.origin, self.first)
