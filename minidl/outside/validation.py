"""Numbers that others have written: in flags, files and documents. The one place that says which are taken.

Whole numbers are at most 2^53, up to which a float has each of them, and reals are finite and at most 1e30: no sum,
product or conversion of a few of them overflows. Whoever needs narrower bounds names them.
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
    """Whether a value is an integer in these bounds; True and False are none."""
    return type(value) is int and least <= value <= most


def is_real(value: object, *, least: float = 0.0, most: float = MOST_REAL) -> bool:
    """Whether a value is a number in these bounds, whole or not; NaN, True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def whole(text: str, *, least: int = 0, most: int = MOST_WHOLE, wanted: str = "") -> int:
    """The integer that a text is. Raises UserError, which says what is taken, in the words of ``wanted``."""
    return _read(text, int, least, most, wanted or f"a whole number of at least {least}")


def real(text: str, *, least: float = 0.0, most: float = MOST_REAL, wanted: str = "") -> float:
    """The number that a text is. Raises UserError, which says what is taken, in the words of ``wanted``."""
    return _read(text, float, least, most, wanted or f"a number of at least {least:g}")


def _read(text: str, kind: Callable[[str], Number], least: Number, most: Number, wanted: str) -> Number:
    try:
        value = kind(text) if len(text) <= _MOST_CHARACTERS else None
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        beyond = text.strip().isdigit() if value is None else value > most  # also with more digits than are read
        too_large = f" and at most {most:g}" if beyond else ""
        raise UserError(f"must be {wanted}{too_large}, not {shown(text)}")
    return value


def shown(value: object, *, most: int = _MOST_SHOWN) -> str:
    """A value for a message: the beginning of what is long."""
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits has no decimal form
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most - 3]}..."
