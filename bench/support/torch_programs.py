"""A PyTorch training as an object: a network, its optimizer, and the loss of a step.

It is run with and without management of memory, and all that it has computed is compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import minidl.torch

SEED = 0


@dataclass
class Program:
    """A network, its optimizer, and what computes the loss of a step."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]

    def step(self) -> torch.Tensor:
        """Carry out one training step; return the loss."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach().clone()

    def lasting(self) -> list[torch.Tensor]:
        """The tensors that outlive its steps: parameters, gradients, buffers, the optimizer's state."""
        kept = [v for each in self.optimizer.state.values() for v in each.values() if isinstance(v, torch.Tensor)]
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        return [*self.network.parameters(), *gradients, *self.network.buffers(), *kept]

    def state(self) -> list[torch.Tensor]:
        """All that training has changed: parameters, buffers, the optimizer's state, the generator."""
        kept = [v for each in self.optimizer.state.values() for v in each.values() if isinstance(v, torch.Tensor)]
        return [*(t.detach().clone() for t in (*self.network.state_dict().values(), *kept)), torch.get_rng_state()]


def run(make: Callable[[], Program], steps: int = 5, memory: Any = None) -> list[torch.Tensor]:
    """Train a fresh program, under ``memory`` if that is given; return the losses and all that training has changed."""
    torch.manual_seed(SEED)
    program = make()
    if memory is None:
        losses = [program.step() for _ in range(steps)]
    else:
        with memory:
            losses = [program.step() for _ in range(steps)]
    return [*losses, *program.state()]


def peak(make: Callable[[], Program], memory: Any = None, steps: int = 6) -> int:
    """Return the most bytes that the last of some steps has in use at once."""
    torch.manual_seed(SEED)
    program = make()

    def last() -> int:
        for _ in range(steps - 1):
            program.step()
        with minidl.torch.Meter(program.lasting()) as meter:
            program.step()
        return meter.peak

    if memory is None:
        return last()
    with memory:
        return last()


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return True if both lists have the same tensors, bit for bit."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(torch.uint8).equal(
            b.contiguous().view(torch.uint8)) for a, b in zip((t.reshape(-1) for t in one),
                                                              (t.reshape(-1) for t in other), strict=True))
