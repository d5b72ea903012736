"""Solutions of lesson 2."""

from __future__ import annotations

from minidl.lab.lifetimes import Lifetime

game = {"a": 0, "c": 2, "b": 4, "d": 5, "e": 7, "f": 0, "g": 3}  # f takes the place of a and c: 3 of their 4 units


def fragmentation(holes: list[int]) -> float:
    """What lies outside of the largest hole."""
    return 1 - max(holes) / sum(holes) if holes else 0.0


def largest_first(buffers: list[Lifetime]) -> dict[str, int]:
    """Each at the lowest gap between those that are placed and live at the same time."""
    offsets: dict[str, int] = {}
    placed: list[Lifetime] = []
    for one in sorted(buffers, key=lambda b: (-b.size, b.lower - b.upper, b.lower)):
        low = 0
        for other in sorted(placed, key=lambda b: offsets[b.id]):
            meets = other.lower < one.upper and one.lower < other.upper
            if meets and offsets[other.id] < low + one.size:
                low = max(low, offsets[other.id] + other.size)
        offsets[one.id] = low
        placed.append(one)
    return offsets
