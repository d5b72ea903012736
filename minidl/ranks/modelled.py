"""One rank of several on a simulated device: no other rank exists, and an exchange takes modelled time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minidl.errors import UserError
from minidl.ranks.group import NOTHING, Ranks

if TYPE_CHECKING:
    import numpy as np


class ModelledRanks(Ranks):
    """One of several ranks, the others of which do not exist; of all, rank 0 has the largest slice of a batch."""

    def gather(self, mine: np.ndarray, sizes: Sequence[int], into: np.ndarray) -> None:
        """Raise UserError: on a simulated device a rank has no values to send."""
        raise UserError("modelled ranks have no values: they are for simulated devices")

    def swap(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Raise UserError: on a simulated device a rank has no values to send."""
        raise UserError("modelled ranks have no values: they are for simulated devices")

    def require_alike(self, what: str) -> None:
        """Do nothing: no other rank could differ."""

    def agree(self, value: Any) -> list[Any]:
        """Return ``count`` times this rank's value, as if every rank had sent this value."""
        return [value] * self.count

    def fail(self, code: int = 1, why: str = "") -> None:
        """Do nothing: there is no other rank."""


def modelled(count: int, *, divide: str = NOTHING) -> ModelledRanks:
    """Return rank 0 of ``count`` simulated ranks. Raises UserError for a count below 1 or another ``divide``.
    divide: "nothing", optimizer "states", or "gradients" and states, of which each rank keeps its part."""
    return ModelledRanks(0, count, divide)
