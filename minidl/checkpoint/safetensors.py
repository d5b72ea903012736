"""The safetensors format: a table of names, types, shapes and byte ranges in JSON, then the bytes. Knows no checkpoint.

  8 bytes            length of the table, unsigned, little-endian
  the table          {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}, padded with spaces
  the rest           the tensors, little-endian, contiguous, without gaps between them

Source: github.com/huggingface/safetensors, README "Format". It is implemented here, and not by the package of that
name, for two needs of checkpoints: a tensor is on the host only while it is written, and a wrong table is refused with
the position of the error, before any memory is allocated for it. Files of weights use the same functions.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minidl.errors import UserError
from minidl.meta import Shape
from minidl.outside.reading import NotJson, open_file, parse_json, reading
from minidl.outside.validation import shown
from minidl.outside.writing import write_whole

CODES: dict[str, str] = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
                         "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32",
                         "uint16": "U16", "uint8": "U8", "bool": "BOOL"}
ITEM_BYTES: dict[str, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
                              "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
NAMES = {code: name for name, code in CODES.items()}
METADATA, WRITER = "__metadata__", {"writer": "minidl"}  # marks files written by minidl
LENGTH_BYTES = 8
PYTORCHS = (b"PK\x03\x04", b"\x80\x02")  # a file of torch.save begins as a zip archive or, an old one, as a pickle
LARGEST_TABLE = 100_000_000  # bytes, the format's limit
MOST_DIMENSIONS = 64


class CorruptFile(UserError):
    """An error about a damaged file, or one of another format: ``path``, ``offset`` in bytes, ``what`` is wrong."""

    def __init__(self, path: object, offset: int, what: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.what = what


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file: NumPy's name of its type, its shape, and the position of its bytes in the file."""

    dtype: str
    shape: Shape
    offset: int
    nbytes: int


def table(tensors: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the beginning of a file of tensors of these types (NumPy's names) and shapes; their bytes follow.

    Each tensor is aligned to its item size if larger items come first. ``metadata`` is stored with the tensors."""
    rows: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    start = 0
    for name, (dtype, shape) in tensors.items():
        code = CODES[dtype]
        stop = start + prod(shape) * ITEM_BYTES[code]
        rows[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def aligned(tensors: Mapping[str, tuple[str, Shape]]) -> dict[str, tuple[str, Shape]]:
    """Return the tensors sorted by item size, largest first, so that each is aligned to its item size."""
    return dict(sorted(tensors.items(), key=lambda item: -ITEM_BYTES[CODES[item[1][0]]]))


def chunks(tensors: Mapping[str, tuple[str, Shape]], value: Callable[[str], np.ndarray],
           metadata: Mapping[str, str] | None = None) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file: its table, then each tensor, whose value is requested only then."""
    yield table(tensors, metadata)
    for name in tensors:
        yield np.ascontiguousarray(value(name)).reshape(-1).view(np.uint8).data


def is_own(head: bytes) -> bool:
    """Return True if a file with this beginning was written by ``write_arrays``."""
    return head[LENGTH_BYTES:].startswith(json.dumps({METADATA: WRITER}, separators=(",", ":"))[:-1].encode())


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], *, force: bool = False) -> None:
    """Write a file of arrays, larger items first and then by name; whole or not at all (``outside.writing``).

    Raises UserError for a type that the format lacks, before a file is made, and if the file cannot be written.
    """
    for name, array in arrays.items():
        if array.dtype.name not in CODES:
            raise UserError(f"{name} is {array.dtype.name}; a safetensors file can hold {', '.join(CODES)}")
    tensors = aligned({name: (arrays[name].dtype.name, arrays[name].shape) for name in sorted(arrays)})
    # NumPy's name of a type does not tell its byte order.
    write_whole(path, chunks(tensors, lambda name: arrays[name].astype(tensors[name][0], copy=False), WRITER), is_own,
                force=force)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name. Raises Unreadable; CorruptFile for a damaged file or another format."""
    with reading(path), open_file(path) as file:
        entries = read_table(file, path, os.fstat(file.fileno()).st_size)
        # The arrays are consecutive, and the first one is next.
        return {name: read_array(file, path, name, entry) for name, entry in entries.items()}


def read_array(file: BinaryIO, path: object, name: str, entry: Entry) -> np.ndarray:
    """Read the array that ``entry`` describes and that is next in the file. path, name: for the message.
    Raises OSError if reading fails, CorruptFile if the file ends too early."""
    found = np.fromfile(file, entry.dtype, prod(entry.shape))
    if found.nbytes != entry.nbytes:
        raise CorruptFile(path, entry.offset, f"{shown(name)} ends early")
    return found.reshape(entry.shape)


def read_table(file: BinaryIO, path: object, file_bytes: int) -> dict[str, Entry]:
    """Return the table of an open file of ``file_bytes`` bytes, in the order of the bytes.
    Raises CorruptFile, with the place, if the table is invalid or does not describe all bytes of the file."""
    head = file.read(LENGTH_BYTES)
    length = int.from_bytes(head, "little")
    if file_bytes < LENGTH_BYTES:
        raise CorruptFile(path, 0, f"{file_bytes} bytes are too few for a safetensors file")
    data = LENGTH_BYTES + length
    if length > LARGEST_TABLE or data > file_bytes:
        if head.startswith(PYTORCHS):
            raise CorruptFile(path, 0, "this is a file of PyTorch, or of NumPy; `minidl convert FILE NEW` makes a "
                              "safetensors file of the weights in it")
        raise CorruptFile(path, 0, f"a table of {length} bytes does not fit a file of {file_bytes}")
    text = file.read(length)
    rows = parse_object(text, path, LENGTH_BYTES)
    entries: dict[str, Entry] = {}
    for name, row in rows.items():
        if name == METADATA:
            continue
        try:
            entries[name] = _entry(row, data)
        except ValueError as error:
            raise CorruptFile(path, LENGTH_BYTES + _where(text, name), f"tensor {shown(name)}: {error}") from None
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    end = data
    for name, entry in ordered.items():
        if entry.offset != end:
            raise CorruptFile(path, LENGTH_BYTES + _where(text, name),
                              f"tensor {shown(name)} starts at byte {entry.offset}; the one before ends at {end}")
        end += entry.nbytes
    if end != file_bytes:
        raise CorruptFile(path, min(end, file_bytes), f"the tensors end at byte {end}, the file at {file_bytes}")
    return ordered


def _entry(row: Any, data: int) -> Entry:
    """Return one row of the table as an entry. Raises ValueError with the mistake."""
    if type(row) is not dict or row.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("expected dtype, shape and data_offsets")
    code, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if type(code) is not str or code not in NAMES:
        raise ValueError(f"dtype {shown(code)} is none of {', '.join(NAMES)}")
    for key, value, most in (("shape", shape, MOST_DIMENSIONS), ("data_offsets", offsets, 2)):
        if type(value) is not list or len(value) > most or not all(type(n) is int and 0 <= n < 1 << 63 for n in value):
            raise ValueError(f"{key} {shown(value)} is no list of at most {most} sizes")
    nbytes = prod(shape) * ITEM_BYTES[code]
    if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes:
        raise ValueError(f"data_offsets {shown(offsets)} are not {shown(nbytes)} bytes apart")
    return Entry(NAMES[code], tuple(shape), data + offsets[0], nbytes)


def parse_object(text: bytes, path: object, offset: int) -> dict[str, Any]:
    """Return the JSON object with unique keys in ``text``. Raises CorruptFile if it is none.
    path, offset: the file and the byte at which the text begins, for the message."""
    try:
        value = parse_json(text, unique_keys=True)
    except NotJson as error:
        raise CorruptFile(path, offset + error.offset, error.what) from None
    if type(value) is not dict:
        raise CorruptFile(path, offset, "expected a JSON object")
    return value


def _where(text: bytes, name: str) -> int:
    return max(0, text.find(json.dumps(name).encode()))
