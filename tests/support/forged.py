"""Checkpoints with valid checksums but wrong content, as if changed and signed again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minidl.checkpoint import Store, read_checkpoint
from minidl.meta import DTYPES


class Kept:
    """The ``store.Source`` of an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, DTYPES[array.dtype.name]

    def numpy(self) -> np.ndarray:
        return self.array


def forge(path: Path, document: str, change: Callable[[Any], object]) -> Path:
    """Change one document of a checkpoint in place, and sign all of it again."""
    value = json.loads((path / document).read_bytes())
    change(value)
    return sign(path, {document: json.dumps(value)})


def sign(path: Path, documents: dict[str, str]) -> Path:
    """Put other documents into a checkpoint, with checksums that agree."""
    old = read_checkpoint(path)
    texts = {name: data.decode() for name, data in old.documents.items()}
    arrays = {name: Kept(old.array(name)) for name in old.tensors}
    return Store(path.parent, keep=1).save(old.step, arrays, texts | documents)
