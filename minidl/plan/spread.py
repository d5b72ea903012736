"""The noise of repeated measurements."""

from collections.abc import Collection
from statistics import median


def spread(seconds: Collection[float]) -> float:
    """Return the median absolute deviation of durations, divided by their median; 0 without durations.
    Also 0 if the median is 0."""
    middle = median(seconds) if seconds else 0.0
    return median(abs(each - middle) for each in seconds) / middle if middle else 0.0
