"""Takes modes off PyTorch's stack of dispatch modes, and puts them back."""

from __future__ import annotations

from typing import Any

from torch.utils import _python_dispatch as modes


def lifted(until: Any = None) -> list[Any]:
    """Take all dispatch modes above ``until`` (None: all modes) off the stack; return them, the topmost last."""
    above: list[Any] = []
    stack = modes._get_current_dispatch_mode_stack()
    for mode in reversed([m for m in stack if getattr(m, "_mode_key", None) is None]):
        if mode is until:
            break
        above.insert(0, modes._pop_mode())
    return above


def put_back(above: list[Any]) -> None:
    """Put the modes that ``lifted`` has returned back on the stack, in their old order."""
    for mode in above:
        modes._push_mode(mode)
