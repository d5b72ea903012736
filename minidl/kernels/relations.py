"""The relations that numbers are compared by, each once, as a plain function: devices lift them into their kernels.

Every relation but ``!=`` is False where one of the numbers is NaN.
"""

from collections.abc import Callable
from typing import Any

Number = Any


def equal(a: Number, b: Number) -> bool:
    """a = b"""
    return bool(a == b)


def unequal(a: Number, b: Number) -> bool:
    """Not a = b"""
    return bool(a != b)


def less(a: Number, b: Number) -> bool:
    """a < b"""
    return bool(a < b)


def at_most(a: Number, b: Number) -> bool:
    """a <= b"""
    return bool(a <= b)


def greater(a: Number, b: Number) -> bool:
    """a > b"""
    return bool(a > b)


def at_least(a: Number, b: Number) -> bool:
    """a >= b"""
    return bool(a >= b)


RELATIONS: dict[str, Callable[[Number, Number], bool]] = {
    "==": equal, "!=": unequal, "<": less, "<=": at_most, ">": greater, ">=": at_least}
