"""Make a safetensors file of weights in another format: ``python -m models.convert IN OUT.safetensors``.

IN is a PyTorch file (.pth, .pt, .bin, .ckpt; read with PyTorch, which must be installed, and never by running what is
in it) or NumPy's .npz. A dictionary below "state_dict", "model" or "model_state_dict" is taken for the weights.
Names stay as they are: ``models.weights`` fits them to a network. Half precision becomes float32.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minidl.checkpoint.safetensors import is_own, write_arrays
from minidl.command import Parser, finish
from minidl.errors import UserError
from minidl.writing import require_place

PYTORCH = (".pth", ".pt", ".bin", ".ckpt")
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
        write_arrays(target, arrays, force=force)
    except OSError as error:
        raise UserError(f"{error.filename or source}: {error.strerror or error}") from None
    return len(arrays)


def _numpy(source: str) -> dict[str, np.ndarray]:
    try:
        with np.load(source, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except ValueError as error:
        raise UserError(f"{source}: {error}") from None


def _pytorch(source: str) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise UserError(f'{source}: PyTorch is needed to read it: pip install "minidl[peers]"') from None
    from pickle import UnpicklingError

    try:
        content: Any = torch.load(source, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise UserError(f"{source}: no weights that can be read without running code ({str(error).splitlines()[0]})"
                        ) from None
    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    tensors = {name: tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)} \
        if isinstance(content, Mapping) else {}
    if not tensors:
        raise UserError(f"{source}: holds no weights by name")
    # A copy each: tensors may share memory there, and arrays must not in the result.
    return {name: (tensor.float() if tensor.is_floating_point() else tensor).contiguous().numpy().copy()
            for name, tensor in tensors.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert as the command line says and return the exit code: 2 after an error, which is printed."""
    parser = Parser(prog="python -m models.convert", description="Make a safetensors file of weights.")
    parser.add_argument("source", metavar="IN", help=f"a file of PyTorch ({', '.join(PYTORCH)}) or NumPy (.npz)")
    parser.add_argument("target", metavar="OUT.safetensors")
    parser.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")

    def story() -> int:
        options = parser.parse_args(arguments)
        count = convert(options.source, options.target, force=options.force)
        print(f"{options.target}: {count} arrays")
        return 0

    return finish("models.convert", story)


if __name__ == "__main__":
    sys.exit(main())
