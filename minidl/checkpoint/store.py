"""A folder of checkpoints, each in its own folder ``step-00000050``; only the newest few are kept.

  tensors.safetensors   the tensors
  *.json                everything else, as documents of their own
  manifest.json         the SHA-256 of every range of bytes, one per tensor and document; and its own

A checkpoint is written by ``durable.publish_folder``, so every one with a name is complete: a program that is killed at
any moment leaves the earlier ones. Reading checks every byte before it uses any, with bounded memory.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minidl.checkpoint.durable import ChecksummedRange, first_difference, publish_folder, remove_folder, write_file
from minidl.checkpoint.safetensors import CorruptFile, Entry, aligned, chunks, parse_object, read_array, read_table
from minidl.errors import UserError
from minidl.meta import DType, Shape
from minidl.outside.reading import Unreadable, is_folder, is_there, names_in, open_file, read_bytes, reading
from minidl.outside.validation import is_whole
from minidl.outside.writing import HIDDEN, make_folder

FORMAT, VERSION = "minidl-checkpoint", 1
TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"
LARGEST_DOCUMENT = 256 << 20  # bytes
_NAME = re.compile(r"step-(\d{8,})")
_OWN_CHECKSUM = '"sha256": "{}"}}\n'


class SavableTensor(Protocol):
    """A tensor to be saved."""

    @property
    def shape(self) -> Shape:
        """The sizes of its dimensions."""

    @property
    def dtype(self) -> DType:
        """The type of its elements."""

    def numpy(self) -> np.ndarray:
        """Return its value on the host; called when it is written."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose checksums agree. Its tensors are read on request."""

    path: Path
    step: int
    tensors: Mapping[str, Entry]
    documents: Mapping[str, bytes]

    def array(self, name: str) -> np.ndarray:
        """Return the value of a tensor. Raises Unreadable; CorruptFile if the file has changed since it was checked."""
        path, entry = self.path / TENSORS, self.tensors[name]
        with reading(path), open_file(path) as file:
            file.seek(entry.offset)
            return read_array(file, path, name, entry)

    def document(self, name: str) -> dict[str, Any]:
        """Return a document as an object. Raises CorruptFile if it is missing, or no JSON object."""
        if name not in self.documents:
            raise CorruptFile(self.path / name, 0, "there is no such file")
        return parse_object(self.documents[name], self.path / name, 0)


class Store:
    """The checkpoints in one folder; ``keep`` is how many of them remain there."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        if not is_folder(self.folder):
            return []
        found = (_NAME.fullmatch(name) for name in names_in(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """Return the folder for the checkpoint of a step, which need not exist."""
        return self.folder / f"step-{step:08}"

    def save(self, step: int, tensors: Mapping[str, SavableTensor], documents: Mapping[str, str]) -> Path:
        """Write a checkpoint, then remove the oldest ones beyond ``keep``. Raises UserError if the disk refuses.

        Tensors are read one at a time, when they are written. The names of documents end in ``.json``.
        """
        path = self.path(step)
        try:
            make_folder(self.folder)
            self.clean()
            publish_folder(path, lambda folder: _fill(folder, tensors, documents))
            for old in self.steps()[:-self.keep]:
                remove_folder(self.path(old))
        except OSError as error:
            raise UserError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None
        return path

    def clean(self) -> None:
        """Remove unfinished checkpoints of a killed program, which have hidden names. Raises OSError if that fails."""
        for name in os.listdir(self.folder) if self.folder.is_dir() else ():
            if name.startswith(HIDDEN) and _NAME.match(name[1:]):
                remove_folder(self.folder / name)


def listed_in_order(tensors: Mapping[str, SavableTensor]) -> dict[str, tuple[str, Shape]]:
    """Return (dtype, shape) of each tensor, in the order in which a checkpoint reads them."""
    return aligned({name: (tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()})


def _fill(folder: Path, tensors: Mapping[str, SavableTensor], documents: Mapping[str, str]) -> None:
    listed = listed_in_order(tensors)
    pieces = write_file(folder / TENSORS, chunks(listed, lambda name: tensors[name].numpy()))
    rows = [_row(TENSORS, name, piece) for name, piece in zip(["", *listed], pieces, strict=True)]
    for name, text in documents.items():
        rows += [_row(name, "", piece) for piece in write_file(folder / name, [text.encode()])]
    body = f'{{"format": "{FORMAT}", "version": {VERSION},\n"pieces": [\n' + ",\n".join(rows) + "],\n"
    own = _OWN_CHECKSUM.format(sha256(body.encode()).hexdigest())
    write_file(folder / MANIFEST, [(body + own).encode()])


def _row(file: str, tensor: str, piece: ChecksummedRange) -> str:
    return json.dumps({"file": file, "tensor": tensor, "offset": piece.offset, "bytes": piece.nbytes,
                       "sha256": piece.sha256})


def read_checkpoint(path: Path) -> Checkpoint:
    """Check every byte of a checkpoint and return it. Raises UserError; CorruptFile, with file and byte, for damage."""
    match = _NAME.fullmatch(path.name)
    if match is None or not is_folder(path):
        raise UserError(f"{path} is not a checkpoint")
    try:
        with reading(path):
            return _read(path, int(match[1]))
    except Unreadable as error:
        raise UserError(f"cannot read the checkpoint {path}: {error.why}") from None


def _read(path: Path, step: int) -> Checkpoint:
    pieces = _manifest(_existing(path / MANIFEST))
    documents: dict[str, bytes] = {}
    entries: dict[str, Entry] = {}
    for name, listed in pieces.items():
        with open_file(_existing(path / name)) as file:
            size, end = os.fstat(file.fileno()).st_size, 0
            for tensor, piece in listed:
                if piece.offset != end:
                    raise CorruptFile(path / MANIFEST, 0, f"the pieces of {name} leave out byte {end}")
                wrong = first_difference(file, piece)
                if wrong:
                    whose = f" of {tensor}" if tensor else ""
                    raise CorruptFile(path / name, piece.offset, f"{wrong} (the {piece.nbytes} bytes{whose} from here)")
                end += piece.nbytes
            if end != size:
                raise CorruptFile(path / name, end, f"{size - end} bytes too many")
            file.seek(0)
            if name == TENSORS:
                entries = read_table(file, path / name, size)
            elif size > LARGEST_DOCUMENT:
                raise CorruptFile(path / name, 0, f"{size} bytes are too many for a document")
            else:
                documents[name] = file.read(size)
    if TENSORS not in pieces:
        raise CorruptFile(path / MANIFEST, 0, f"{TENSORS} is not listed")
    return Checkpoint(path, step, entries, documents)


def _existing(path: Path) -> Path:
    """Return the path. Raises CorruptFile if it does not exist; a file that exists but cannot be read is not damage."""
    if not is_there(path):
        raise CorruptFile(path, 0, "there is no such file")
    return path


def _manifest(path: Path) -> dict[str, list[tuple[str, ChecksummedRange]]]:
    """Read the manifest at ``path``: by file its pieces, with tensors' names or "". Raises CorruptFile for damage."""
    text = read_bytes(path, most=LARGEST_DOCUMENT)
    size = len(text)
    own = len(_OWN_CHECKSUM.format("0" * 64))
    if text[-own:] != _OWN_CHECKSUM.format(sha256(text[:-own]).hexdigest()).encode():
        raise CorruptFile(path, max(0, size - own), "the checksum of the manifest itself does not agree")
    data = parse_object(text, path, 0)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise CorruptFile(path, 0, f"not version {VERSION} of {FORMAT}")
    rows = data.get("pieces")
    pieces: dict[str, list[tuple[str, ChecksummedRange]]] = {}
    for row in rows if type(rows) is list else [None]:
        if type(row) is not dict or {key: type(value) for key, value in row.items()} != _ROW:
            raise CorruptFile(path, 0, "pieces is no list of pieces")
        file, offset, nbytes = row["file"], row["offset"], row["bytes"]
        if (file != TENSORS and not re.fullmatch(r"[a-z0-9-]+\.json", file)
                or not (is_whole(offset) and is_whole(nbytes))):
            raise CorruptFile(path, 0, "a piece of no file of a checkpoint")
        pieces.setdefault(file, []).append((row["tensor"], ChecksummedRange(offset, nbytes, row["sha256"])))
    return pieces


_ROW = {"file": str, "tensor": str, "offset": int, "bytes": int, "sha256": str}
