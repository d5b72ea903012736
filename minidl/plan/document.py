"""The common part of the JSON documents of traces and plans: writing them, and checking them against a description.

A key that is unknown, missing or of the wrong type is a UserError that says where. Knows neither traces nor plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError
from msgspec.json import decode

from minidl.errors import UserError
from minidl.outside.reading import read_bytes
from minidl.outside.validation import MOST_REAL, MOST_WHOLE

MOST_BYTES = 256 << 20  # of a file: a trace has about 400 a call
MOST_SHOWN = 200  # characters of a message: what a file calls its keys may be of any length
MOST_ID = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=MOST_WHOLE)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_REAL)]
Id = Annotated[int, Meta(ge=-MOST_ID, le=MOST_ID)]
Ids = tuple[Id, ...]
Pairs = tuple[tuple[Id, Id], ...]
Key = TypeVar("Key")
Value = TypeVar("Value")


class Head(Struct):
    """The first keys of every document."""

    format: str
    version: int


class Row(Struct, forbid_unknown_fields=True):
    """A part of a document, which has no other keys than those of its class."""


Document = TypeVar("Document", bound=Head)
Readers = Mapping[int, tuple[type[Any], Callable[[Any], Value]]]
"""Of each version that can be read: its description, and what makes a value of it."""


# Writing -------------------------------------------------------------------------------------------------------------
def beginning(name: str) -> str:
    """How a document of a format begins."""
    return f'{{"format": "{name}"'


def document(name: str, version: int, parts: Mapping[str, object]) -> str:
    """A document with a line for each entry of a list. Raises ValueError for seconds beyond floats."""
    lines = [f'{beginning(name)}, "version": {version}']
    for key, value in parts.items():
        rows = ",\n  ".join(map(_line, value)) if isinstance(value, list) else ""
        lines.append(f'"{key}": [\n  {rows}]' if rows else f'"{key}": {_line(value)}')
    return ",\n ".join(lines) + "}\n"


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False, default=_by_name)


def _by_name(value: Any) -> dict[str, object]:
    """A call or an algorithm by the names of its fields, which are those of the file."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


# Reading -------------------------------------------------------------------------------------------------------------
def read(text: str | bytes, name: str, readers: Readers[Value]) -> Value:
    """The content of a document of a format. Raises UserError naming the mistake and its place."""
    if len(text) > MOST_BYTES:
        raise UserError(f"{name}: longer than the {MOST_BYTES} bytes that are read")
    try:
        head = decode(text, type=Head)  # alone, as a file of another version may have other keys
        if head.format != name:
            raise UserError(f"{name}: the format of this file is {_short(json.dumps(head.format))}")
        if head.version not in readers:
            known = " and ".join(map(str, readers))
            raise UserError(f"{name}: version {head.version}; only version{'s' * (len(readers) > 1)} {known} can be "
                            "read")
        kind, build = readers[head.version]
        return build(decode(text, type=kind))
    except ValidationError as error:
        raise UserError(f"{name}: {_short(error)}") from None
    except (DecodeError, UnicodeError) as error:
        raise UserError(f"{name}: not JSON: {_short(error)}") from None
    except RecursionError:
        raise UserError(f"{name}: not JSON that can be read: nested too deeply") from None


def read_file(path: str, name: str, readers: Readers[Value]) -> Value:
    """The content of a file of a format. Raises UserError naming the file, the mistake and its place."""
    data = read_bytes(path, most=MOST_BYTES)
    try:
        return read(data, name, readers)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def each_once(where: str, pairs: Iterable[tuple[Key, Value]]) -> dict[Key, Value]:
    """The pairs as a dictionary. Raises ValidationError for a key that comes twice."""
    found: dict[Key, Value] = {}
    for n, (key, value) in enumerate(pairs):
        if key in found:
            raise ValidationError(f"{key} is listed twice - at `$.{where}[{n}]`")
        found[key] = value
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN // 2]}...{text[-MOST_SHOWN // 2:]}"
