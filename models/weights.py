"""Load trained weights: safetensors files with the names of torchvision, timm and Hugging Face.

The networks here use these names. This module handles the files' variations: prefixes, renamed parameters, tensors that
are not parameters, and tied parameters that a file holds twice.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minidl.checkpoint.safetensors import CorruptFile, read_arrays
from minidl.errors import UserError
from minidl.nn import Module, lora
from minidl.outside.reading import Unreadable

# (pattern of a name in a file, replacement): tried in order for names that the network does not have.
RENAMED: tuple[tuple[str, str], ...] = (
    (r"^(module|model)\.", ""),  # the prefix of a wrapper for several GPUs, or of a trainer
    (r"^", "transformer."),  # GPT-2's own files lack the prefix of the network with a head,
    (r"^", "bert."),  # and so do files of a BertModel without heads
    (r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),  # BERT's names from TensorFlow
    (r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
    (r"\.(norm|conv)\.([12])\.", r".\1\2."),  # torchvision's DenseNet files of 2017
)
# Tied parameters that a file may hold twice: (second name, the network's name).
TIED: tuple[tuple[str, str], ...] = (
    ("lm_head.weight", "transformer.wte.weight"),
    ("lm_head.weight", "model.embed_tokens.weight"),
    ("lm_head.weight", "shared.weight"),
    ("encoder.embed_tokens.weight", "shared.weight"),
    ("decoder.embed_tokens.weight", "shared.weight"),
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
)
# Names that are ignored if the network does not have them: constants, and an auxiliary head.
LEFT_OUT = (r"\.attn\.(bias|masked_bias)$", r"(^|\.)embeddings\.position_ids$", r"(^|\.)AuxLogits\.",
            r"num_batches_tracked$")


def load(model: Module, path: str) -> None:
    """Overwrite a network's parameters and buffers with those of a safetensors file, except adapters (``nn.lora``).
    Raises UserError if the file cannot be read, or if names are missing or unexpected, or shapes differ."""
    try:
        adapters = lora.adapters(model)
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers()) if name not in adapters]
        model.load_state_dict(fit(read(path), names) | adapters)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read(path: str) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file, by name. Raises UserError."""
    if Path(path).suffix != ".safetensors":
        raise UserError("weights are read from .safetensors files; minidl convert converts other formats")
    try:
        return read_arrays(path)
    except Unreadable as error:
        raise UserError(f"cannot be read: {error.why}") from None
    except CorruptFile as error:
        raise UserError(f"not a readable safetensors file: at byte {error.offset}: {error.what}") from None


def fit(arrays: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the arrays under a network's names, by the tables above; names without a match are kept.
    Raises UserError if a tied parameter has two different values."""
    known = set(names)
    fitted: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    for name, array in arrays.items():
        found = _own_name(name, known)
        if tied_to(found, known):
            seconds[found] = array
        elif found in known or not any(re.search(pattern, found) for pattern in LEFT_OUT):
            fitted[found] = array
    for second, array in seconds.items():
        name = tied_to(second, known) or second
        if not np.array_equal(fitted.setdefault(name, array), array):
            raise UserError(f"{second} differs from {name}, and the network has one parameter for both")
    return fitted


def tied_to(name: str, known: Collection[str]) -> str | None:
    """Return the name of the network's parameter that ``name`` is a second name of; None if it is not one."""
    return next((first for second, first in TIED if second == name and first in known and name not in known), None)


def _own_name(name: str, known: set[str]) -> str:
    """Return the network's name (or a tied second name) that some renamings, in order, lead to; else the given name."""
    candidates = [name]
    for pattern, replacement in RENAMED:
        candidates += [renamed for old in candidates
                       if (renamed := re.sub(pattern, replacement, old, count=1)) not in candidates]
    return next((candidate for candidate in candidates if candidate in known or tied_to(candidate, known)), name)
