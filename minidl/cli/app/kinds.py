"""The kinds of values that flags take, of train.py and of other commands: each function turns a word into a value.

Each raises argparse.ArgumentTypeError for a word that it does not accept; argparse puts the flag's name before the
message.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import nextafter
from typing import Any, TypeVar

from minidl import placements, policies
from minidl.cli.command import note_new_name
from minidl.device.precision import precision_of
from minidl.errors import UserError
from minidl.outside import validation as numbers
from minidl.outside.registry import Registry
from minidl.outside.units import parse_bytes

MPI = "mpi"  # ranks: the processes that mpiexec has started
CHOSEN = 0  # slices: as many as are fastest; shards: where a parameter has no room whole

Value = TypeVar("Value")
_ABOVE_0 = nextafter(0, 1)
MOST_PERCENT = 1e6


@dataclass(frozen=True, slots=True)
class Share:
    """A budget as a part of the unmanaged peak: 0.5 is half."""

    of_peak: float


def whole(text: str) -> int:
    """A whole number of at least 1."""
    return read(numbers.whole, text, least=1)


def count(text: str) -> int:
    """A whole number of at least 0."""
    return read(numbers.whole, text)


def positive(text: str) -> float:
    """A finite number above 0."""
    return read(numbers.real, text, least=_ABOVE_0, wanted="a number above 0")


def part(text: str) -> float:
    """A number of at least 0 and below 1."""
    wanted = "a number of at least 0 and below 1"
    value = read(numbers.real, text, wanted=wanted)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return value


def rate(text: str) -> float:
    """A finite number of at least 0."""
    return read(numbers.real, text)


def batch(text: str) -> int | None:
    """A batch size, or None for ``max``."""
    return None if text == "max" else read(numbers.whole, text, least=1, wanted="max or a whole number of at least 1")


def path(text: str) -> str:
    """The name of a file or a folder, of at least one character: a variable of a shell may be empty."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file or a folder, and is empty")
    return text


def size(text: str) -> int:
    """Bytes: ``16GiB``, ``512MB``, or a number of them."""
    return read(parse_bytes, text)


def budget(text: str) -> int | Share:
    """Bytes, or a Share for a percentage."""
    if text.endswith("%"):
        return Share(read(numbers.real, text[:-1], least=_ABOVE_0, most=MOST_PERCENT,
                          wanted="a percentage above 0") / 100)
    return _some(text)


def _some(text: str) -> int:
    """Bytes as ``size`` reads them; 0 is refused."""
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, not {text}")
    return nbytes


def read(reader: Callable[..., Value], text: str, **bounds: Any) -> Value:
    """The value that a function reads from a word. Its UserError becomes an ArgumentTypeError with the same message."""
    try:
        return reader(text, **bounds)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def precision(name: str) -> str:
    """A name of ``minidl.device.precision``."""
    return read(precision_of, name).name


def policy(name: str) -> str:
    """The name of a policy of ours or of an installed package; the message names the nearest ones."""
    return _known(policies.REGISTRY, name)


def current_policy(name: str) -> str:
    """The present name of a policy, with a line on stderr where a former one is given."""
    now = policies.REGISTRY.current(name)
    if now != name:
        note_new_name(f"policy {name}", now)
    return now


def placement(name: str) -> str:
    """The name of a placement of ours or of an installed package; the message names the nearest ones."""
    return _known(placements.REGISTRY, name)


def _known(registry: Registry[Any], name: str) -> str:
    read(registry.require, name)
    return name


def slices(text: str) -> int:
    """A number of slices, or ``auto``."""
    return CHOSEN if text == "auto" else whole(text)


def ranks(text: str) -> int | str:
    """A number of simulated ranks, or ``mpi``."""
    return MPI if text == MPI else read(numbers.whole, text, least=1, wanted="mpi or a whole number of at least 1")


def shard_bytes(text: str) -> int:
    """Bytes, or ``auto``."""
    return CHOSEN if text == "auto" else _some(text)
