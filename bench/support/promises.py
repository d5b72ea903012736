"""Settled steps beside their predictions, and steps that are slower in more memory."""

from dataclasses import dataclass

MISSED = 0.02  # of the predicted seconds: such a promise is not kept
SLOWER = 0.005  # of the unmanaged seconds: so much more in more memory counts


@dataclass(frozen=True)
class Cell:
    """A step after plans have settled; its seconds as a multiple of the unmanaged step's, measured and predicted."""

    trace: str
    host: str
    policy: str
    share: float
    took: float
    predicted: float | None

    @property
    def miss(self) -> float | None:
        """Return the seconds beyond the prediction as a share of the prediction; None without a plan."""
        return None if self.predicted is None else self.took / self.predicted - 1.0


def dips(found: list[Cell]) -> list[tuple[Cell, Cell]]:
    """Return pairs of cells of the same trace, host and policy: one, and the fastest that is faster in less memory."""
    pairs = []
    for one in found:
        less = [c for c in found if (c.trace, c.host, c.policy) == (one.trace, one.host, one.policy)
                and c.share < one.share]
        best = min(less, key=lambda c: c.took, default=one)
        if one.took > best.took + SLOWER:
            pairs.append((one, best))
    return pairs
