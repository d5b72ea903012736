"""Make a safetensors file of weights in another format: ``minidl convert IN OUT.safetensors``.


IN is a PyTorch file (.pth, .pt, .bin, .ckpt), for which PyTorch must be installed and whose code is never run, or a
NumPy .npz file. If the file has a dictionary "state_dict", "model" or "model_state_dict", that one holds the weights.
Names do not change; ``models.weights`` maps them to a network. Floats of a PyTorch file become float32.
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
ARRAY = b"\x93NUMPY"  # the first bytes of a file with a single array
MOST_SHOWN = 160  # characters shown of another library's message
WRAPPERS = ("state_dict", "model", "model_state_dict")


def convert(source: str, target: str, *, force: bool = False) -> int:
    """Write the weights of a file to a safetensors file; return the number of arrays.

    force: also overwrite a file that minidl did not write. Raises UserError for an unknown format, or a file that
    cannot be read or written.
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
            raise UserError(f"{source}: it holds no named weights")
        write_arrays(target, arrays, force=force)
    except OSError as error:
        raise UserError(f"{error.filename or source}: {error.strerror or error}") from None
    return len(arrays)


def _numpy(source: str) -> dict[str, np.ndarray]:
    with open_file(source) as file:
        try:
            with warnings.catch_warnings(action="ignore"):  # such as those about old headers
                if file.read(len(ARRAY)) != ARRAY and not is_zipfile(file):
                    raise ValueError("not an archive")  # NumPy would take it for a pickle
                file.seek(0)
                content: Any = np.load(file, allow_pickle=False)
                if isinstance(content, np.ndarray):
                    raise ValueError("a single array, not named arrays as in .npz")
                return {name: content[name] for name in content.files}
        except Exception as error:  # the readers of zip files, NumPy headers and arrays raise various errors
            raise UserError(f"{source}: not a readable .npz file: {_first_line(error)}") from None


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
            # Copy each: the tensors may share memory, the arrays must not.
            plain = {name: tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
                     for name, tensor in tensors.items()}
            return {name: tensor.contiguous().numpy().copy() for name, tensor in plain.items()}
        except Exception as error:  # the reader may raise anything
            raise UserError(f"{source}: its weights cannot be read without running code ({_first_line(error)})"
                            ) from None


def _first_line(error: Exception) -> str:
    return shown((str(error).strip() or type(error).__name__).splitlines()[0], most=MOST_SHOWN)


if __name__ == "__main__":
    carry_out("minidl.models.convert", "convert")
