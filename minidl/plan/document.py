"""Writes and reads JSON documents: the common part of the file formats of traces and plans.

A key that is unknown, missing or of the wrong type raises a UserError that says where it is.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError
from msgspec.json import decode

from minidl.errors import UserError
from minidl.outside.reading import read_bytes
from minidl.outside.validation import MOST_REAL, MOST_WHOLE

MOST_BYTES = 256 << 20  # of a file: a trace has about 400 bytes per call
MOST_SHOWN = 200  # characters of a message: keys in a file may be of any length
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
    """The base class of the objects in a document. A key that is not a field of the class is an error."""


Document = TypeVar("Document", bound=Head)
Readers = Mapping[int, tuple[type[Any], Callable[[Any], Value]]]
"""Version of the format -> (msgspec class of the document, function from that class to a value)."""


# Writing -------------------------------------------------------------------------------------------------------------
def beginning(name: str) -> str:
    """Return the first characters of every document of the format ``name``."""
    return f'{{"format": "{name}"'


def document(name: str, version: int, parts: Mapping[str, object]) -> str:
    """Return a document of the format ``name`` as JSON.
    parts: its keys and values; each entry of a list has its own line. Raises ValueError for infinite or NaN numbers."""
    lines = [f'{beginning(name)}, "version": {version}']
    for key, value in parts.items():
        rows = ",\n  ".join(map(_line, value)) if isinstance(value, list) else ""
        lines.append(f'"{key}": [\n  {rows}]' if rows else f'"{key}": {_line(value)}')
    return ",\n ".join(lines) + "}\n"


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False, default=_by_name)


def _by_name(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass as a dict; the file uses the same names."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


# Reading -------------------------------------------------------------------------------------------------------------
def read(text: str | bytes, name: str, readers: Readers[Value]) -> Value:
    """Return the value that a document of the format ``name`` holds.
    readers: format version -> (class of the document, function from that class to the value). Raises UserError with the
    mistake and its place in the document."""
    if len(text) > MOST_BYTES:
        raise UserError(f"{name}: longer than the limit of {MOST_BYTES} bytes")
    try:
        head = decode(text, type=Head)  # first without the rest: another version may have other keys
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
    """Return the value that a file of the format ``name`` holds. Raises UserError with the path and the mistake."""
    data = read_bytes(path, most=MOST_BYTES)
    try:
        return read(data, name, readers)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def each_once(where: str, pairs: Iterable[tuple[Key, Value]]) -> dict[Key, Value]:
    """Return the pairs as a dict. Raises ValidationError for a repeated key. where: the list's key in the document."""
    found: dict[Key, Value] = {}
    for n, (key, value) in enumerate(pairs):
        if key in found:
            raise ValidationError(f"{key} is listed twice - at `$.{where}[{n}]`")
        found[key] = value
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN // 2]}...{text[-MOST_SHOWN // 2:]}"
