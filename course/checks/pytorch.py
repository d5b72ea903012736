"""Checks of lesson 8: bytes to copy, a pack hook, a replay's random numbers, the smallest budget."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from checks.verdict import first_difference, judged

TAKES = 'This exercise takes PyTorch: pip install -e ".[course,torch]"'
SAVES = [(100, 0, 8), (200, 0, 16), (100, 0, 8), (100, 1, 8), (300, 2, 4), (200, 0, 16)]


@judged("A storage that was written in between has other bytes, so it is copied again.")
def bytes_to_copy(answer: Any) -> str:
    """Exercise 1."""
    return first_difference(answer, [(([],), 0), (([(100, 0, 8), (100, 0, 8)],), 8),
                                     (([(100, 0, 8), (100, 3, 8)],), 16), ((SAVES,), 8 + 16 + 8 + 4)])


def _losses(torch: Any) -> list[Callable[[Any], Any]]:
    """Functions of a parameter whose backward pass reads saved tensors of several layouts."""
    return [lambda w: (w @ w).square().sum(), lambda w: (w.t().exp() * w[:1]).sum(),
            lambda w: torch.nn.functional.gelu(w.mean() * w).sum()]


@judged("The gradients have the same bits, and nothing of the saved tensors was on the device in between.")
def pack(answer: Any) -> str:
    """Exercise 2: gradients as without hooks, and no storage that outlives the forward pass."""
    try:
        import torch
    except ImportError:
        return TAKES
    first = answer(torch.ones(2))
    if first is None:
        return "There is no answer so far: it returns None."
    if not callable(first):
        return f"It returns {first!r}, and a function without arguments is wanted."
    for loss in _losses(torch):
        expected: Any = torch.linspace(-1, 1, 36).view(6, 6)
        found: Any = expected.clone()
        saved: list[Any] = []

        def note(found: Any, saved: list[Any], tensor: Any) -> Any:
            if tensor.untyped_storage().data_ptr() != found.untyped_storage().data_ptr():
                saved.append(weakref.ref(tensor.untyped_storage()))
            return answer(tensor)

        loss(expected.requires_grad_()).backward()
        with torch.autograd.graph.saved_tensors_hooks(partial(note, found, saved), lambda back: back()):
            result = loss(found.requires_grad_())
        held = [storage for storage in (ref() for ref in saved) if storage is not None
                and storage.data_ptr() != result.untyped_storage().data_ptr()]
        if held:
            return f"After the forward pass {len(held)} saved tensors are still in memory: the function holds them."
        result.backward()
        if not torch.equal(expected.grad, found.grad):
            return f"A gradient is {found.grad.flatten()[:4].tolist()}..., and without hooks it is " \
                   f"{expected.grad.flatten()[:4].tolist()}..."
    return ""


@judged("The replay has drawn what the first call drew, and the program draws on as if nothing had happened.")
def again(answer: Any) -> str:
    """Exercise 3: the same result, and the generator's present state afterwards."""
    try:
        import torch
    except ImportError:
        return TAKES
    present = torch.get_rng_state()
    try:
        torch.manual_seed(7)
        state, ones = torch.get_rng_state(), torch.ones(64)
        call = partial(torch.nn.functional.dropout, ones, 0.5)
        first = call()
        torch.rand(3)  # the program draws on before the replay
        now = torch.get_rng_state()
        second = answer(call, state)
        if second is None:
            return "There is no answer so far: it returns None."
        if not isinstance(second, torch.Tensor) or not torch.equal(first, second):
            return "The second call has drawn other random numbers than the first."
        if not torch.equal(torch.get_rng_state(), now):
            return "What the program draws next has changed: the generator's present state has to come back."
        return ""
    finally:
        torch.set_rng_state(present)


@judged("Between the floor and the peak a few percent of time buy most of the bytes.")
def smallest_budget(answer: Any) -> str:
    """Exercise 4."""
    points = [(100, 1.0), (75, 1.02), (50, 1.08), (25, 1.31), (10, 1.9)]
    return first_difference(answer, [((points, 1.1), 50), ((points, 1.0), 100), ((points, 2.0), 10),
                                     ((points, 0.9), 0), (([], 1.5), 0), ((points[::-1], 1.31), 25)])
