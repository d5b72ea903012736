"""Validation of numbers from flags, files and documents: the only place that defines which are accepted.

Integers are at most 2^53, up to which floats represent all integers; reals are finite and at most 1e30, so that no sum,
product or conversion of a few of them overflows. Callers may pass narrower bounds.
"""

from collections.abc import Callable
from typing import TypeVar

from minidl.errors import UserError

Number = TypeVar("Number", int, float)

MOST_WHOLE = 1 << 53
MOST_REAL = 1e30
_MOST_CHARACTERS = 400  # of a number
_MOST_SHOWN = 60  # characters of a value in a message


def is_whole(value: object, *, least: int = 0, most: int = MOST_WHOLE) -> bool:
    """True if a value is an integer within bounds; booleans do not count."""
    return type(value) is int and least <= value <= most


def is_real(value: object, *, least: float = 0.0, most: float = MOST_REAL) -> bool:
    """True if a value is an integer or float from ``least`` to ``most``, both included; NaN and booleans are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def whole(text: str, *, least: int = 0, most: int = MOST_WHOLE, wanted: str = "") -> int:
    """Return the integer in a text. Raises UserError if it is none or out of bounds; wanted: valid values, in words."""
    return _read(text, int, least, most, wanted or f"a whole number of at least {least}")


def real(text: str, *, least: float = 0.0, most: float = MOST_REAL, wanted: str = "") -> float:
    """Return the number in a text. Raises UserError for a text that is no number from ``least`` to ``most``, both
    included. wanted: the valid numbers in words, for the message."""
    return _read(text, float, least, most, wanted or f"a number of at least {least:g}")


def _read(text: str, kind: Callable[[str], Number], least: Number, most: Number, wanted: str) -> Number:
    try:
        value = kind(text) if len(text) <= _MOST_CHARACTERS else None
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        beyond = text.strip().isdigit() if value is None else value > most  # also if it has too many digits to parse
        too_large = f" and at most {most:g}" if beyond else ""
        raise UserError(f"must be {wanted}{too_large}, not {shown(text)}")
    return value


def shown(value: object, *, most: int = _MOST_SHOWN) -> str:
    """Return a value as text for a message, cut to ``most`` characters, the last three of which are then dots."""
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits has no decimal form
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most - 3]}..."
