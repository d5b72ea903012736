"""Solutions of lesson 1."""

from __future__ import annotations


def feature_bytes(batch: int, channels: int, height: int, width: int) -> int:
    """Four bytes for each number."""
    return batch * channels * height * width * 4


def live_bytes(calls: list[tuple[list[str], list[str], list[str]]], sizes: dict[str, int]) -> list[int]:
    """What is there before the call, and what it makes; what it frees goes afterwards."""
    made = {tensor for _, makes, _ in calls for tensor in makes}
    there = sum(size for tensor, size in sizes.items() if tensor not in made)
    found = []
    for _, makes, frees in calls:
        there += sum(sizes[tensor] for tensor in makes)
        found.append(there)
        there -= sum(sizes[tensor] for tensor in frees)
    return found


def largest_batch(peaks: dict[int, int], budget: int) -> int:
    """A line through two points: bytes for each example, and what is fixed."""
    (less, first), (more, second) = sorted(peaks.items())
    each = (second - first) / (more - less)
    return int((budget - (first - less * each)) / each)
