"""A digest of what a PyTorch training has learned, so that two runs can be compared bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from minidl.errors import UserError


@contextmanager
def stepping() -> Iterator[list[torch.optim.Optimizer]]:
    """A context manager whose value is a list: the optimizers that have stepped inside, in order of first steps."""
    found: list[torch.optim.Optimizer] = []

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(optimizer is each for each in found):
            found.append(optimizer)

    handle = register_optimizer_step_post_hook(stepped)
    try:
        yield found
    finally:
        handle.remove()


def digest(optimizers: list[torch.optim.Optimizer]) -> str:
    """Return as text the SHA-256 of all parameters and states of optimizers, and the numbers of both.
    It covers dtypes, shapes and every bit. Raises UserError if there are no optimizers, so nothing to compare."""
    if not optimizers:
        raise UserError("it covers what optimizers have trained, and no optimizer has stepped")
    total, parameters, states = sha256(), 0, 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameters += 1
                _add(total, parameter)
                for name, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if isinstance(value, torch.Tensor):
                        states += 1
                        total.update(name.encode())
                        _add(total, value)
    return f"{total.hexdigest()} of {parameters} parameters and {states} tensors of optimizer state"


def _add(total: Any, tensor: torch.Tensor) -> None:
    total.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
