"""Small PyTorch networks as training programs, run with and without ``minidl.torch``, and policies that force a choice.

Import it after ``pytest.importorskip("torch")``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch._dynamo  # as the first step of an optimizer does
from torch import nn
from torch.nn import functional as F

import minidl.torch
from bench.support.torch_programs import Program, peak, run, same
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan, Proposal
from minidl.plan.policy import Eviction, OnDemand, Pressure, Residency
from minidl.plan.trace import Trace
from minidl.planning.modes import to_plan
from minidl.planning.problem import DROP, KEEP, SWAP, problem

torch.set_num_threads(1)  # several processes share the processors
gc.freeze()  # so that no start of the management looks for optimizers among all that the libraries have made

__all__ = ["NETWORKS", "ROOMY", "Forced", "Program", "forced", "peak", "run", "same"]
ROOMY = 1 << 40


class Forced(OnDemand):
    """A policy that evicts every tensor it may.

    ``swap``, ``drop`` where possible, or ``mixed``, which alternates; ``some`` drops where possible, but keeps every
    third.
    """

    name = "forced"
    plans = True

    def __init__(self, how: str) -> None:
        self.how = how

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        """Return the plan."""
        facts = problem(trace, costs)
        mode = np.full(len(facts.gap_call), SWAP, np.int64)
        for gap in range(len(mode)):
            if self.how == "some" and not gap % 3:
                mode[gap] = KEEP
            elif facts.can_drop[gap] and (self.how in ("drop", "some") or self.how == "mixed" and gap % 2):
                mode[gap] = DROP
        return Proposal(Plan() if self.how == "keep" else to_plan(trace, facts, mode, np.full(len(mode), -1)))

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Never called."""
        return []


def forced(how: str, budget: int = ROOMY, **more: Any) -> Any:
    """Return the manager of a training in which every tensor that may leave does so in one way, at any cost."""
    memory = minidl.torch.managed(budget, policy=Forced(how), **more)
    memory.planner.counts_recording = False
    return memory


# Networks ------------------------------------------------------------------------------------------------------------
class Residual(nn.Module):
    """Two convolutions with in-place writes, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, width, h, w] -> the same."""
        y = self.inner(x)
        y += x
        return F.relu_(y)


class Attention(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, length, width] -> the same."""
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


def convolutional() -> Program:
    """Batch norm, in-place additions and ReLU, pooling, dropout."""
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(16), nn.MaxPool2d(2), Residual(16),
                            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10))
    x, y = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    return Program(network, torch.optim.SGD(network.parameters(), 0.1, momentum=0.9),
                   lambda: F.cross_entropy(network(x), y))


class Language(nn.Module):
    """A language model whose embedding is also its head."""

    def __init__(self, words: int = 96, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Attention(width) for _ in range(depth)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, length] words -> [n, length, words]."""
        return self.blocks(self.embedding(x)) @ self.embedding.weight.t()


def transformer() -> Program:
    """Attention with dropout, tied weights, AdamW."""
    network = Language()
    x = torch.randint(0, 96, (4, 32))
    return Program(network, torch.optim.AdamW(network.parameters(), 1e-3),
                   lambda: F.cross_entropy(network(x).flatten(0, 1), x.flatten()))


def recurrent() -> Program:
    """An LSTM of two layers, with dropout between them."""
    network = nn.ModuleDict({"lstm": nn.LSTM(32, 64, 2, dropout=0.2), "head": nn.Linear(64, 10)})
    x, y = torch.randn(12, 8, 32), torch.randint(0, 10, (8,))
    return Program(network, torch.optim.Adam(network.parameters(), 1e-3),
                   lambda: F.cross_entropy(network["head"](network["lstm"](x)[0][-1]), y))


def of_complex_numbers() -> Program:
    """A spectrum: saved tensors with conjugate bits."""
    network = nn.Linear(64, 64)
    x = torch.randn(32, 64)

    def loss() -> torch.Tensor:
        z = torch.fft.fft(network(x))
        power = (z * z.conj()).real
        return (power.mT @ power).mean() + torch.view_as_real(z).pow(2).mean()

    return Program(network, torch.optim.SGD(network.parameters(), 1e-6), loss)


def adversarial() -> Program:
    """A gradient penalty: a backward pass of a backward pass."""
    network = nn.ModuleDict({
        "fake": nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2, True), nn.Linear(64, 64)),
        "judge": nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2, True), nn.Dropout(0.2), nn.Linear(64, 1))})
    x = torch.randn(32, 64)

    def loss() -> torch.Tensor:
        fake = network["fake"](torch.randn(32, 16))
        share = torch.rand(32, 1)
        between = share * x + (1 - share) * fake
        slope, = torch.autograd.grad(network["judge"](between).sum(), between, create_graph=True)
        return network["judge"](fake).mean() - network["judge"](x).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()

    return Program(network, torch.optim.Adam(network.parameters(), 1e-4), loss)


NETWORKS: dict[str, Callable[[], Program]] = {
    "convolutional": convolutional, "transformer": transformer, "recurrent": recurrent,
    "complex": of_complex_numbers, "adversarial": adversarial}
