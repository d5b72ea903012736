"""Where in a program the calls come from that are carried out later than they are asked for: for people, who look at
tensors by layer. Knows names alone; nothing is decided by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidl.executor import Executor


@dataclass(frozen=True, slots=True)
class Origin:
    """``within``: the layer that asked for an operation; "" of none. ``graded``: gradients were being noted."""

    within: str
    graded: bool


class Origins:
    """The origins of one executor's calls. Whoever wants to know says where the program is, and is told who made what.

    within   the layer that the program is in, as somebody has said
    made     layers, and the ids of the temporary tensors that calls of theirs made, as these were carried out
    """

    def __init__(self, executor: Executor) -> None:
        self.within = ""
        self.made: list[tuple[str, range]] = []
        self._executor = executor
        self._carried: Origin | None = None

    def here(self) -> Origin:
        """That of an operation that is asked for now."""
        return Origin(self.within, self._executor.grad_enabled)

    @property
    def graded(self) -> bool:
        """True if gradients were being noted when the call was asked for that runs now."""
        return self._carried.graded if self._carried is not None else self._executor.grad_enabled

    def carrying_out(self, origin: Origin) -> _Carrying:
        """The calls inside are those of an operation that was asked for there."""
        return _Carrying(self, origin)

    def begin(self, origin: Origin) -> int:
        """Go there; the id of the next temporary tensor."""
        self._carried = origin
        return self._executor.tracker.temporaries

    def end(self, origin: Origin, first: int) -> None:
        """Come back from there."""
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
