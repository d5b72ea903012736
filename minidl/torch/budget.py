"""What a step needs at least, and what that is made of: what a budget that is too small is refused with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minidl.errors import UserError
from minidl.outside.units import format_bytes
from minidl.planning.lifetimes import Lifetimes
from minidl.torch.tracing import Seen


class BudgetTooSmall(UserError, MemoryError):
    """A step does not fit into the budget with all saved tensors away.

    budget_bytes, need_bytes  what there is, and what the step needs at least.
    """

    def __init__(self, message: str, *, budget_bytes: int, need_bytes: int) -> None:
        super().__init__(message)
        self.budget_bytes, self.need_bytes = budget_bytes, need_bytes


@dataclass(frozen=True)
class Need:
    """Bytes of what outlives a step."""

    parameters: int = 0
    gradients: int = 0
    state: int = 0


def need_of(optimizer: torch.optim.Optimizer | None) -> Need:
    """The bytes that an optimizer's parameters have, their gradients, and its state."""
    if optimizer is None:
        return Need()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return Need(_bytes(parameters), _bytes(gradients), _bytes(_state(optimizer)))


def lasting_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors that an optimizer knows: parameters, gradients, state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [*parameters, *(p.grad for p in parameters if p.grad is not None), *_state(optimizer)]


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() if isinstance(state, dict)
            for value in state.values() if isinstance(value, torch.Tensor)]


def _bytes(tensors: list[torch.Tensor]) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors
                if t.layout is torch.strided}
    return sum(storages.values())


def refuse(budget: int, floor: int, seen: Seen, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise BudgetTooSmall, with what makes the need up."""
    need = need_of(optimizer)
    parts = {"parameters": need.parameters, "gradients": need.gradients, "optimizer state": need.state}
    rest = floor - sum(parts.values())
    parts["at work and outside of autograd"] = max(0, rest)
    facts = Lifetimes.of(seen.trace)
    away = [0] * (len(seen.trace.calls) + 1)
    for tensor_id, (left, back) in (seen.trace.windows or {}).items():
        for call in range(left + 1, back):
            away[call] += facts.nbytes[tensor_id]
    worst = max(range(len(facts.live_bytes)), key=lambda call: facts.live_bytes[call] - away[call])
    made_of = ", ".join(f"{what} {format_bytes(nbytes)}" for what, nbytes in parts.items() if nbytes)
    raise BudgetTooSmall(
        f"{format_bytes(budget)}; with all saved tensors away this step needs {format_bytes(floor)}, at "
        f"{seen.trace.calls[worst].op}: {made_of}", budget_bytes=budget, need_bytes=floor)
