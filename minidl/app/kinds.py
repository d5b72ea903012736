"""What the values of train.py's flags may be: one function a kind, from the word that was given to its value.

Each raises argparse.ArgumentTypeError for what it does not take; argparse puts the flag's name before the message.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from minidl import placements, policies
from minidl.device.precision import precision_of
from minidl.errors import UserError
from minidl.registry import Registry
from minidl.units import parse_bytes

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Share:
    """A budget as a part of the unmanaged peak: 0.5 is half."""

    of_peak: float


def whole(text: str) -> int:
    """A whole number of at least 1."""
    return number(text, int, "a whole number of at least 1", lambda n: n >= 1)


def count(text: str) -> int:
    """A whole number of at least 0."""
    return number(text, int, "a whole number of at least 0", lambda n: n >= 0)


def positive(text: str) -> float:
    """A finite number above 0."""
    return number(text, float, "a number above 0", lambda x: x > 0 and isfinite(x))


def part(text: str) -> float:
    """A number of at least 0 and below 1."""
    return number(text, float, "a number of at least 0 and below 1", lambda x: 0 <= x < 1)


def rate(text: str) -> float:
    """A finite number of at least 0."""
    return number(text, float, "a number of at least 0", lambda x: x >= 0 and isfinite(x))


def number(text: str, kind: Callable[[str], Number], wanted: str, good: Callable[[Number], bool]) -> Number:
    """The number that a text is. Raises ArgumentTypeError, in the words of ``wanted``, if it is none or no good one."""
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not good(value):
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return value


def batch(text: str) -> int | None:
    """A batch size, or None for ``max``."""
    return None if text == "max" else number(text, int, "max or a whole number of at least 1", lambda n: n >= 1)


def size(text: str) -> int:
    """Bytes: ``16GiB``, ``512MB``, or a number of them."""
    try:
        return parse_bytes(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def budget(text: str) -> int | Share:
    """Bytes, or a Share for a percentage."""
    if text.endswith("%"):
        return Share(number(text[:-1], float, "a percentage above 0", lambda x: x > 0 and isfinite(x)) / 100)
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, not {text}")
    return nbytes


def precision(name: str) -> str:
    """A name of ``minidl.device.precision``."""
    try:
        return precision_of(name).name
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def policy(name: str) -> str:
    """The name of a policy of ours or of an installed package; the message names the nearest ones."""
    return _known(policies.REGISTRY, name)


def placement(name: str) -> str:
    """The name of a placement of ours or of an installed package; the message names the nearest ones."""
    return _known(placements.REGISTRY, name)


def _known(registry: Registry[Any], name: str) -> str:
    try:
        registry.require(name)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name
