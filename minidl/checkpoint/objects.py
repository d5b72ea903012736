"""``minidl.save`` and ``minidl.load``: nested dictionaries, lists, numbers and strings with tensors and arrays in them.

A file is a safetensors file: the arrays by number, and the structure around them as JSON in an array of bytes. It
contains no code, so loading a stranger's file runs nothing.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from minidl.checkpoint.safetensors import CorruptFile, read_arrays, write_arrays
from minidl.errors import UserError
from minidl.outside.reading import NotJson, parse_json
from minidl.runtime import current_runtime
from minidl.tensor import Tensor

STRUCTURE = "structure"
PLAIN = (str, int, float, bool, type(None))


def _taken_apart(value: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    """Return a value as plain JSON data; its arrays are moved to ``arrays``. Raises UserError for an unsupported type.
    """
    if isinstance(value, Tensor | np.ndarray):
        arrays[str(len(arrays))] = value.numpy() if isinstance(value, Tensor) else value
        return {"tensor" if isinstance(value, Tensor) else "array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return _taken_apart(value.item(), arrays, path)
    if isinstance(value, dict):
        return {"dict": [[_taken_apart(k, arrays, path), _taken_apart(v, arrays, f"{path}[{k!r}]")]
                         for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_taken_apart(v, arrays, f"{path}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, PLAIN):
        return value
    raise UserError(f"save: {path} is a {type(value).__name__}; a file has tensors, arrays, numbers, words, and lists "
                    "and dictionaries of these: save model.state_dict() of a model")


def _put_together(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, content), = value.items()
    if kind in ("tensor", "array"):
        array = arrays[str(content)]
        return current_runtime().tensor(array) if kind == "tensor" else array
    if kind == "dict":
        return {_put_together(k, arrays): _put_together(v, arrays) for k, v in content}
    made = [_put_together(v, arrays) for v in content]
    return tuple(made) if kind == "tuple" else made


def save(obj: Any, f: str | Path) -> None:
    """Write a value of nested dicts, lists, tuples, numbers, texts, tensors and arrays to a file, also over an old one.

    Raises UserError for an unsupported type, and if the file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_taken_apart(obj, arrays, "it")).encode()
    write_arrays(f, {STRUCTURE: np.frombuffer(text, np.uint8), **arrays}, force=True)


def load(f: str | Path, map_location: object = None, *, weights_only: bool = True) -> Any:
    """Return the value that ``save`` wrote: tensors on the runtime's device, arrays unchanged.

    ``map_location`` and ``weights_only`` have no effect: there is one device, and a file contains no code. Raises
    Unreadable if the file cannot be read, and CorruptFile if ``save`` did not write it or it is damaged.
    """
    arrays = read_arrays(f)
    if STRUCTURE not in arrays:
        raise CorruptFile(f, 0, "it has arrays alone, and is no file of minidl.save: load_state_dict reads weights")
    try:
        return _put_together(parse_json(arrays.pop(STRUCTURE).tobytes(), unique_keys=True), arrays)
    except (NotJson, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f, 0, f"its structure is not that of a file of minidl.save: {error!r}") from None


