"""The files that train.py is asked for by name. Knows no format but safetensors."""

from contextlib import suppress
from pathlib import Path

from minidl.checkpoint.safetensors import write_arrays
from minidl.errors import UserError
from minidl.nn import Module


def check_writable(path: str) -> None:
    """Raises UserError, before any training, if a file cannot be written; leaves what is there as it is."""
    existed = Path(path).exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    if not existed:
        with suppress(OSError):
            Path(path).unlink()


def save(model: Module, path: str) -> None:
    """Write a network's parameters and buffers by name, as safetensors. Raises UserError."""
    try:
        write_arrays(path, model.state_dict())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
