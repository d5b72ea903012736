"""The comparison relations, each defined once as a plain function; devices lift them into their kernels.

Every relation except ``!=`` is False if one of the numbers is NaN.
"""

from collections.abc import Callable
from typing import Any

Number = Any


def equal(a: Number, b: Number) -> bool:
    """a = b"""
    return bool(a == b)


def unequal(a: Number, b: Number) -> bool:
    """a != b"""
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
