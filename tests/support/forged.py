"""Checkpoints whose checksums agree and whose content does not: what somebody has changed and signed anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minidl.checkpoint import Store, read_checkpoint
from minidl.meta import DTYPES


class Kept:
    """What a checkpoint takes of a tensor, around an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, DTYPES[array.dtype.name]

    def numpy(self) -> np.ndarray:
        return self.array


def forge(path: Path, document: str, change: Callable[[Any], object]) -> Path:
    """Change one document of a checkpoint in place, and sign all of it again."""
    old = read_checkpoint(path)
    texts = {name: data.decode() for name, data in old.documents.items()}
    value = json.loads(texts[document])
    change(value)
    arrays = {name: Kept(old.array(name)) for name in old.tensors}
    return Store(path.parent, keep=1).save(old.step, arrays, texts | {document: json.dumps(value)})
