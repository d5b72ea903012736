"""Checks of lesson 7: a bound of one line, the gap to it, the largest operation, and slices."""

from __future__ import annotations

from typing import Any

from checks.verdict import first_difference, judged


@judged("Three units work side by side, and the slowest of them decides.")
def least_seconds(answer: Any) -> str:
    """Exercise 1."""
    return first_difference(answer, [((4.0, 10.0, 10.0, 5.0), 4.0), ((1.0, 30.0, 10.0, 5.0), 6.0),
                                     ((1.0, 10.0, 20.0, 5.0), 4.0), ((2.0, 0.0, 0.0, 1.0), 2.0)])


@judged("The optimum lies between the bound and the plan; it is shortest where the bound is reached.")
def gap(answer: Any) -> str:
    """Exercise 2."""
    return first_difference(answer, [((1.2, 1.0), 0.2), ((3.0, 3.0), 0.0), ((5.0, 4.0), 0.25)])


SIZES = {"x": 8, "y": 8, "w": 3, "g": 8, "m": 1}


@judged("This is why in-place operations, and an index of one byte in place of a tensor, let larger batches run.")
def operands(answer: Any) -> str:
    """Exercise 3."""
    return first_difference(answer, [
        ((["x", "w"], ["y"], {}, SIZES), 19), ((["x"], ["y"], {"y": "x"}, SIZES), 8),
        ((["x", "x"], ["y"], {}, SIZES), 16), ((["x", "y", "x"], ["g", "m"], {"g": "y"}, SIZES), 17)])


@judged("`--slices auto` decides so on a simulated GPU.")
def slices(answer: Any) -> str:
    """Exercise 4."""
    return first_difference(answer, [((50, 100), 1), ((51, 100), 4), ((100, 100), 4), ((101, 100), 8), ((390, 100), 16),
                                     ((10, 100), 1)])
