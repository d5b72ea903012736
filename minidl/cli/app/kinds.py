"""Types for the flags of train.py and other commands, as argparse's ``type=``: each function converts a text.

Each raises argparse.ArgumentTypeError for a text that it does not accept; argparse adds the flag's name to the message.
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
from minidl.outside.units import MOST_SHARE, parse_bytes

MPI = "mpi"  # ranks: the processes that mpiexec has started
CHOSEN = 0  # slices: as many as are fastest; shards: where a parameter has no room whole

Value = TypeVar("Value")
_ABOVE_0 = nextafter(0, 1)


@dataclass(frozen=True, slots=True)
class Share:
    """A budget as a fraction of the unmanaged peak: ``50%`` is 0.5."""

    of_peak: float


def whole(text: str) -> int:
    """Return the text as an integer of at least 1. Raises ArgumentTypeError for another text."""
    return read(numbers.whole, text, least=1)


def count(text: str) -> int:
    """Return the text as an integer of at least 0. Raises ArgumentTypeError for another text."""
    return read(numbers.whole, text)


def positive(text: str) -> float:
    """Return the text as a finite number above 0. Raises ArgumentTypeError for another text."""
    return read(numbers.real, text, least=_ABOVE_0, wanted="a number above 0")


def part(text: str) -> float:
    """Return the text as a number of at least 0 and below 1. Raises ArgumentTypeError for another text."""
    wanted = "a number of at least 0 and below 1"
    value = read(numbers.real, text, wanted=wanted)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return value


def rate(text: str) -> float:
    """Return the text as a finite number of at least 0. Raises ArgumentTypeError for another text."""
    return read(numbers.real, text)


def batch(text: str) -> int | None:
    """Return the text as an integer of at least 1; None for ``max``, the largest batch that fits."""
    return None if text == "max" else read(numbers.whole, text, least=1, wanted="max or a whole number of at least 1")


def path(text: str) -> str:
    """Return the text, the name of a file or folder. Raises ArgumentTypeError for "", as from an unset variable."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file or a folder, and is empty")
    return text


def names(text: str) -> tuple[str, ...]:
    """Return the words that commas separate. Raises ArgumentTypeError if one is empty."""
    words = tuple(text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(f"must be names with commas between, not {text!r}")
    return words


def size(text: str) -> int:
    """Return the bytes of a text such as ``16GiB`` or ``1048576``. Raises ArgumentTypeError for another text."""
    return read(parse_bytes, text)


def budget(text: str) -> int | Share:
    """Return the bytes of a text as ``size`` does, or a Share for a percentage; both must be above 0."""
    if text.endswith("%"):
        return Share(read(numbers.real, text[:-1], least=_ABOVE_0, most=100 * MOST_SHARE,
                          wanted="a percentage above 0") / 100)
    return _some(text)


def _some(text: str) -> int:
    """Return the bytes of a text as ``size`` does. Raises ArgumentTypeError for 0, too."""
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, not {text}")
    return nbytes


def read(reader: Callable[..., Value], text: str, **bounds: Any) -> Value:
    """Return ``reader(text, **bounds)``; a UserError becomes an ArgumentTypeError with the same message."""
    try:
        return reader(text, **bounds)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def precision(name: str) -> str:
    """Return the name of a precision, such as ``bf16``, after a check that ``minidl.device.precision`` has it."""
    return read(precision_of, name).name


def policy(name: str) -> str:
    """Return the name of a policy of minidl or of an installed package; an error's message names the nearest ones."""
    return _known(policies.REGISTRY, name)


def current_policy(name: str) -> str:
    """Return the present name of a policy. For a former name, one line on stderr says the present one."""
    now = policies.REGISTRY.current(name)
    if now != name:
        note_new_name(f"policy {name}", now)
    return now


def placement(name: str) -> str:
    """Return the name of a placement of minidl or of an installed package; an error's message names the nearest."""
    return _known(placements.REGISTRY, name)


def _known(registry: Registry[Any], name: str) -> str:
    read(registry.require, name)
    return name


def slices(text: str) -> int:
    """Return the text as a number of slices, or CHOSEN (minidl chooses) for ``auto``. Raises as ``whole`` does."""
    return CHOSEN if text == "auto" else whole(text)


def ranks(text: str) -> int | str:
    """Return the text as a number of simulated ranks, or the word ``mpi``."""
    return MPI if text == MPI else read(numbers.whole, text, least=1, wanted="mpi or a whole number of at least 1")


def shard_bytes(text: str) -> int:
    """Return the text as the most bytes of a shard; for ``auto`` CHOSEN, which means that minidl chooses them."""
    return CHOSEN if text == "auto" else _some(text)
