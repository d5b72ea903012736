"""How much what should be alike differs by itself."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median


def spread(seconds: Collection[float]) -> float:
    """How far from their median half of some durations were, as a share of it; 0 if there are none, or it is 0."""
    middle = median(seconds) if seconds else 0.0
    return median(abs(each - middle) for each in seconds) / middle if middle else 0.0
