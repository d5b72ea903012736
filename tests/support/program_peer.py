"""Whole programs in PyTorch: the same steps, numbers to float64 error."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
from program_ops import KINDS, concrete
from program_runs import Machine
from whole_programs import Program


class Peer(Machine):
    """PyTorch on the CPU, in float64."""

    errors = (RuntimeError,)

    def __init__(self, of: Program, torch: Any) -> None:
        super().__init__(of, "float64")
        self.torch = torch
        self.active = self.iteration = nullcontext
        self.no_grad = torch.no_grad

    def start(self) -> None:
        torch, rng = self.torch, np.random.default_rng(self.of.seed)
        self.persistent = {n: torch.tensor(rng.uniform(-1, 1, concrete(s, 1)), requires_grad=True)
                           for n, s in self.of.parameters}
        self.persistent |= {n: torch.ones(concrete(s, 1), dtype=torch.float64) for n, s in self.of.buffers}
        make = {"sgd": lambda ps: torch.optim.SGD(ps, lr=0.05),
                "momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
                "adam": lambda ps: torch.optim.Adam(ps, lr=0.01)}
        self.optimizers = [make[kind]([self.persistent[n] for n in numbers]) for kind, numbers in self.of.optimizers]

    def boundary(self) -> None:
        self.kept = {n: value.detach() for n, value in self.kept.items()}

    def finish(self) -> None:
        self._note()

    def leaf(self, values: np.ndarray) -> Any:
        return self.torch.tensor(values)

    def array(self, value: Any) -> np.ndarray:
        array: np.ndarray = value.detach().numpy().copy()
        return array

    def call(self, kind: str, read: list[Any], attrs: dict[str, Any]) -> Any:
        peer = KINDS[kind].peer
        assert peer is not None
        return peer(self.torch, *read, **attrs)

    def loss(self, x: Any) -> Any:
        return self.torch.tanh(x).mean()

    def write(self, kind: str, target: Any, source: Any) -> None:
        with self.torch.no_grad():
            if kind == "fill_":
                target.fill_(0.5)
            else:
                getattr(target, kind)(source)

    def clip(self, parameters: list[Any]) -> None:
        norm = self.torch.sqrt(sum((p.grad ** 2).sum() for p in parameters if p.grad is not None)
                               + self.torch.zeros((), dtype=self.torch.float64))
        for p in parameters:
            if p.grad is not None:
                p.grad = p.grad * (0.5 / max(norm, self.torch.tensor(0.5, dtype=self.torch.float64)))

