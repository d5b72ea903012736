"""PyTorch's own samples of its functions: parts of all functions, copies of arguments, and the bits of results.

Import it after ``pytest.importorskip("torch")``.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from minidl.torch.schemas import tensors_in

PARTS = 24  # of all functions; one of them is a default test


def in_part(name: str, part: int) -> bool:
    """True if the function of this name belongs to a part, from 0 to 23."""
    return zlib.crc32(name.encode()) % PARTS == part


def copied(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Return a copy of a sample's argument. Its tensors that have gradients are leaves, which ``leaves`` gets, too."""
    if isinstance(value, torch.Tensor):
        value = value.detach().clone().requires_grad_(value.requires_grad)
        leaves += [value] * value.requires_grad
        return value
    return type(value)(copied(each, leaves) for each in value) if type(value) in (list, tuple) else value


def with_gradients(result: Any) -> list[torch.Tensor]:
    """Return those tensors of a function's result that have a gradient."""
    return [t for t in tensors_in(result if isinstance(result, (tuple, list)) else (result,)) if t.requires_grad]


def bits(tensor: torch.Tensor | None) -> bytes | None:
    """Return the bytes of a strided tensor's elements; None for another tensor or none."""
    if tensor is None or tensor.layout is not torch.strided:
        return None
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().numpy().tobytes()
