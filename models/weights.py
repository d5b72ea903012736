"""Parameters from files that others have written: safetensors with the names of torchvision, timm and Hugging Face.

The networks here have these names already. What is left are habits of the files: prefixes, names that have changed
since, tensors that are no parameters, and parameters that are written twice.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minidl.checkpoint.safetensors import CorruptFile, read_arrays
from minidl.errors import UserError
from minidl.nn import Module
from minidl.outside.reading import Unreadable

# Patterns of names that a network does not have, and what they are called in it.
RENAMED: tuple[tuple[str, str], ...] = (
    (r"^(module|model)\.", ""),  # wrapped for several GPUs, or in a trainer
    (r"^", "transformer."),  # GPT-2's own files begin below the head,
    (r"^", "bert."),  # and those of a bare BertModel too
    (r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),  # BERT as it came from TensorFlow
    (r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
    (r"\.(norm|conv)\.([12])\.", r".\1\2."),  # torchvision's DenseNet files of 2017
)
# Parameters that a file may hold twice: the second name, and the one that the network has.
TIED: dict[str, str] = {
    "lm_head.weight": "transformer.wte.weight",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# What is left out where the network does not have it: constants, and the auxiliary head of a network without one.
LEFT_OUT = (r"\.attn\.(bias|masked_bias)$", r"(^|\.)embeddings\.position_ids$", r"(^|\.)AuxLogits\.",
            r"num_batches_tracked$")


def load(model: Module, path: str) -> None:
    """Overwrite a network's parameters and buffers with those of a safetensors file.

    Raises UserError if the file cannot be read, or if names are missing, unexpected or of another shape.
    """
    try:
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        model.load_state_dict(fit(read(path), names))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read(path: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name. Raises UserError."""
    if Path(path).suffix != ".safetensors":
        raise UserError("weights are read from .safetensors files; minidl convert makes one of other "
                        "formats")
    try:
        return read_arrays(path)
    except Unreadable as error:
        raise UserError(f"cannot be read: {error.why}") from None
    except CorruptFile as error:
        raise UserError(f"is no safetensors file that can be read: at byte {error.offset}: {error.what}") from None


def fit(arrays: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The arrays under the names that a network has, as far as the tables above lead there; others keep theirs.

    Raises UserError if a parameter that is written twice has two values.
    """
    known = set(names)
    fitted: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    for name, array in arrays.items():
        found = _own_name(name, known)
        if found not in known and TIED.get(found) in known:
            seconds[found] = array
        elif found in known or not any(re.search(pattern, found) for pattern in LEFT_OUT):
            fitted[found] = array
    for second, array in seconds.items():
        first = fitted.setdefault(TIED[second], array)
        if not np.array_equal(first, array):
            raise UserError(f"{second} differs from {TIED[second]}, and the network has one parameter for both")
    return fitted


def _own_name(name: str, known: set[str]) -> str:
    """What some of the renamings, in their order, lead to and the network has, if by a second name; else the name."""
    candidates = [name]
    for pattern, replacement in RENAMED:
        candidates += [renamed for old in candidates
                       if (renamed := re.sub(pattern, replacement, old, count=1)) not in candidates]
    return next((candidate for candidate in candidates if candidate in known or TIED.get(candidate) in known), name)
