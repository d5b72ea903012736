"""Solutions of lesson 8. PyTorch is imported where it is used, since it may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def bytes_to_copy(saves: list[tuple[int, int, int]]) -> int:
    """Each version of a storage is copied once."""
    return sum({(address, version): nbytes for address, version, nbytes in saves}.values())


def pack(tensor: Any) -> Callable[[], Any]:
    """The function holds the copy, and makes a tensor of it each time."""
    import torch

    host = tensor.detach().numpy().copy()
    return lambda: torch.from_numpy(host.copy())


def again(call: Callable[[], Any], state: Any) -> Any:
    """The present state comes back even if the call fails."""
    import torch

    present = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        return call()
    finally:
        torch.set_rng_state(present)


def smallest_budget(points: Sequence[tuple[int, float]], slowest: float) -> int:
    """Among those that are fast enough."""
    return min((budget for budget, slower in points if slower <= slowest), default=0)
