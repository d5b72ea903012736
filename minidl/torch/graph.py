"""Finds the tensors that autograd has saved without hooks, and gives them hooks afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

RAW = "_raw_saved_"
# Since PyTorch 2.10 or so, a saved tensor tells if it has a hook; before that, asking would call the hook.
LEGIBLE = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


def hook_saved(manages: Callable[[torch.Tensor], bool], pack: Callable[[torch.Tensor], Any],
               unpack: Callable[[Any], torch.Tensor]) -> None:
    """Register the hooks ``pack`` and ``unpack`` for all saved tensors that ``manages`` accepts and that have none.
    PyTorch calls ``pack`` at once. A tensor that was overwritten after it was saved gets no hooks."""
    for node in _nodes():
        for name, read in _names(type(node)):  # type: ignore[arg-type] # mypy takes a class for unhashable
            try:
                found, values = getattr(node, name), getattr(node, read) if _bare(node, name) else None
            except RuntimeError:  # freed, or overwritten
                continue
            several = isinstance(found, (tuple, list))
            for saved, value in zip(found, values or (), strict=False) if several else [(found, values)]:
                if value is not None and saved is not None and manages(saved.data):
                    saved.register_hooks(pack, unpack)


def _bare(node: Any, name: str) -> bool:
    """True if none of a node's saved tensors has hooks, so that reading them calls no code of the program."""
    found = getattr(node, name)
    each = found if isinstance(found, (tuple, list)) else (found,)
    return all(saved is None or saved.unpack_hook is None for saved in each)


@cache
def _names(kind: type) -> tuple[tuple[str, str], ...]:
    """Return for each saved tensor of a class of autograd nodes two attributes: the raw one, and the checked one."""
    raw = [name for name in dir(kind) if name.startswith(RAW)]
    return tuple((name, "saved_tensors" if name == RAW + "tensors" and hasattr(kind, "saved_tensors")
                  else name.replace("_raw", "", 1)) for name in raw)


def _nodes() -> Iterator[Any]:
    """Yield every node of autograd's graphs: each is reached from a tensor that Python holds."""
    with torch._C.DisableTorchFunctionSubclass():
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        todo = [node for node in (tensor.grad_fn for tensor in tensors if not tensor.is_leaf) if node is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        todo += new
