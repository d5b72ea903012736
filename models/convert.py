"""Make a safetensors file of weights in another format: ``minidl convert IN OUT.safetensors``.

IN is a PyTorch file (.pth, .pt, .bin, .ckpt; read with PyTorch, which must be installed, and never by running what is
in it) or NumPy's .npz. A dictionary below "state_dict", "model" or "model_state_dict" is taken for the weights.
Names stay as they are: ``models.weights`` fits them to a network. Half precision becomes float32.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from minidl.checkpoint.safetensors import is_own, write_arrays
from minidl.cli.command import carry_out
from minidl.errors import UserError
from minidl.outside.reading import open_file
from minidl.outside.validation import shown
from minidl.outside.writing import require_place

PYTORCH = (".pth", ".pt", ".bin", ".ckpt")
ARRAY = b"\x93NUMPY"  # with which a single array begins
MOST_SHOWN = 160  # characters of what another library says
WRAPPERS = ("state_dict", "model", "model_state_dict")


def convert(source: str, target: str, *, force: bool = False) -> int:
    """Write the weights of one file into a safetensors file; returns the number of arrays.

    force: over a file that minidl did not write, too. Raises UserError for an unknown format, or a file that cannot be
    read or written.
    """
    suffix = Path(source).suffix
    if Path(target).suffix != ".safetensors":
        raise UserError(f"{target}: the name of the result must end in .safetensors")
    if suffix != ".npz" and suffix not in PYTORCH:
        raise UserError(f"{source}: known formats are {', '.join(PYTORCH)} and .npz")
    require_place(target, is_own, force=force)
    try:
        arrays = _numpy(source) if suffix == ".npz" else _pytorch(source)
        if not arrays:
            raise UserError(f"{source}: holds no weights by name")
        write_arrays(target, arrays, force=force)
    except OSError as error:
        raise UserError(f"{error.filename or source}: {error.strerror or error}") from None
    return len(arrays)


def _numpy(source: str) -> dict[str, np.ndarray]:
    with open_file(source) as file:
        try:
            with warnings.catch_warnings(action="ignore"):  # of old headers, for one
                if file.read(len(ARRAY)) != ARRAY and not is_zipfile(file):
                    raise ValueError("not an archive")  # what NumPy would take for a pickle
                file.seek(0)
                content: Any = np.load(file, allow_pickle=False)
                if isinstance(content, np.ndarray):
                    raise ValueError("a single array, and .npz has them by name")
                return {name: content[name] for name in content.files}
        except Exception as error:  # the readers of zip, of NumPy's headers and of its numbers each have their own
            raise UserError(f"{source}: no .npz that can be read: {_first_line(error)}") from None


def _pytorch(source: str) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise UserError(f'{source}: PyTorch is needed to read it: pip install "minidl[peers]"') from None
    with open_file(source) as file:
        try:
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
            for wrapper in WRAPPERS:
                if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
                    content = content[wrapper]
            tensors = {name: tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)} \
                if isinstance(content, Mapping) else {}
            # A copy each: tensors may share memory there, and arrays must not in the result.
            plain = {name: tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
                     for name, tensor in tensors.items()}
            return {name: tensor.contiguous().numpy().copy() for name, tensor in plain.items()}
        except Exception as error:  # whatever the reader stumbles over
            raise UserError(f"{source}: no weights that can be read without running code ({_first_line(error)})"
                            ) from None


def _first_line(error: Exception) -> str:
    return shown((str(error).strip() or type(error).__name__).splitlines()[0], most=MOST_SHOWN)


if __name__ == "__main__":
    carry_out("minidl.models.convert", "convert")
