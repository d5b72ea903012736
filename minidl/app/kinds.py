"""What the values of train.py's flags may be: one function a kind. argparse puts the flag's name before the message."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from minidl import placements, policies
from minidl.device.precision import precision_of
from minidl.errors import UserError
from minidl.registry import Registry
from minidl.units import parse_bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A budget as a part of the unmanaged peak: 0.5 is half."""

    of_peak: float


def whole(text: str) -> int:
    return number(text, int, "a whole number of at least 1", lambda n: n >= 1)


def count(text: str) -> int:
    return number(text, int, "a whole number of at least 0", lambda n: n >= 0)


def positive(text: str) -> float:
    return number(text, float, "a number above 0", lambda x: x > 0 and isfinite(x))


def part(text: str) -> float:
    return number(text, float, "a number of at least 0 and below 1", lambda x: 0 <= x < 1)


def rate(text: str) -> float:
    return number(text, float, "a number of at least 0", lambda x: x >= 0 and isfinite(x))


def number(text: str, kind: Callable[[str], Any], wanted: str, good: Callable[[Any], bool]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not good(value):
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return value


def batch(text: str) -> int | None:
    return None if text == "max" else number(text, int, "max or a whole number of at least 1", lambda n: n >= 1)


def size(text: str) -> int:
    try:
        return parse_bytes(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def budget(text: str) -> int | Share:
    if text.endswith("%"):
        return Share(number(text[:-1], float, "a percentage above 0", lambda x: x > 0 and isfinite(x)) / 100)
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, not {text}")
    return nbytes


def precision(name: str) -> str:
    try:
        return precision_of(name).name
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def policy(name: str) -> str:
    """The name of a policy of ours or of an installed package."""
    return _known(policies.REGISTRY, name)


def placement(name: str) -> str:
    """The name of a placement of ours or of an installed package."""
    return _known(placements.REGISTRY, name)


def _known(registry: Registry[Any], name: str) -> str:
    try:
        registry.require(name)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name
