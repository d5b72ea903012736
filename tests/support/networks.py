"""Small networks, a training loop that returns every byte of its state, and helpers for tests of the memory.

The networks take a few milliseconds per step, but are deep enough that the working set of their largest operation is a
small part of the unmanaged peak, and that this operation works on activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import minidl
from bench.gpu_check.steps import state_of
from minidl import nn
from minidl.memory.ledger import Demand
from minidl.memory.storage import OUT, RECOMPUTE
from minidl.ops.loss import cross_entropy
from minidl.ops.shape import concat
from minidl.optim import SGD, Adam, Optimizer
from minidl.plan.plan import Action
from minidl.runtime.stats import Stats
from minidl.tensor import Tensor

CLASSES = 10
UNLIMITED = 1 << 26  # bytes: far more than any of these networks needs


class Mlp(nn.Sequential):
    """[N, 64] -> [N, 10]: no convolution, every activation function, dropout."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Sigmoid(), nn.Dropout(0.25),
                         nn.Linear(128, 128), nn.ReLU(inplace=True), nn.Linear(128, CLASSES))


class Vgg(nn.Sequential):
    """[N, 3, 16, 16] -> [N, 10]: convolutions with bias and fused or in-place ReLU, max-pool, dropout at the end."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in ((8, 3), (16, 3), (16, 2)):
            for _ in range(convolutions - 1):
                layers.append(nn.ConvReLU2d(channels, width, 3, padding=1))
                channels = width
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Dropout(0.5),
                         nn.Linear(32, CLASSES))


class Block(nn.Module):
    """A residual block; where the shape changes, its input passes a 1x1 convolution and a batch norm."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or in_channels != width
        self.downsample = nn.Sequential(nn.Conv2d(in_channels, width, 1, stride, bias=False),
                                        nn.BatchNorm2d(width)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y = self.bn1(y)
        y = self.relu(y)
        y = self.conv2(y)
        y = self.bn2(y)
        y = y + self.downsample(x)
        return self.relu(y)


class ResNet(nn.Sequential):
    """[N, 3, 16, 16] -> [N, 10]: batch norm, overlapping max-pool, residual joins with and without downsampling."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                         nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


class Inception(nn.Module):
    """Three branches of one input, concatenated."""

    def __init__(self, in_channels: int, width: int) -> None:
        self.pointwise = nn.Conv2d(in_channels, width, 1)
        self.window = nn.Sequential(nn.Conv2d(in_channels, width, 1), nn.ReLU(inplace=True),
                                    nn.Conv2d(width, width, 3, padding=1))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(in_channels, width, 1))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(concat([self.pointwise(x), self.window(x), self.pooled(x)]))


class Dense(nn.Module):
    """A dense block: every layer sees the concatenation of all layers before it; dropout on each layer's output."""

    def __init__(self, in_channels: int, growth: int, layers: int) -> None:
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(in_channels + i * growth), nn.ReLU(),
                          nn.Conv2d(in_channels + i * growth, growth, 3, padding=1, bias=False), nn.Dropout(0.2))
            for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(concat(features) if len(features) > 1 else features[0]))
        return concat(features)


class Branching(nn.Module):
    """[N, 3, 12, 12] -> [N, 10]: concatenations, a gate that multiplies (shared twice), views, average pools."""

    def __init__(self) -> None:
        self.inception1 = Inception(3, 4)
        self.inception2 = Inception(12, 4)
        self.dense = Dense(12, 4, 3)
        self.pool = nn.AvgPool2d(2)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 24, 1), nn.Sigmoid())
        self.head = nn.Linear(24 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inception1(x)
        x = self.inception2(x)
        x = self.dense(x)
        x = self.pool(x)
        x = x * self.gate(x)
        x = x.narrow(1, 0, 12).contiguous() * 0.5 + x.narrow(1, 12, 12).contiguous()
        x = concat([x, x])
        return self.head(x.flatten(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (Mlp, (16, 64)),
    "vgg": (Vgg, (16, 3, 16, 16)),
    "resnet": (ResNet, (24, 3, 16, 16)),
    "branching": (Branching, (8, 3, 12, 12)),
}
"""Each network, and the shape of its input batch."""

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.05),
    "momentum": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: Adam(model.parameters(), lr=1e-3, weight_decay=1e-3),
}


class Training:
    """A network, its optimizer and its data under the current runtime; ``step`` is one training step."""

    def __init__(self, runtime: minidl.Runtime, network: str, optimizer: str, *, batch: int | None = None) -> None:
        make, shape = NETWORKS[network]
        self.runtime = runtime
        self.model = make()
        self.optimizer = OPTIMIZERS[optimizer](self.model)
        self.shape = (batch or shape[0], *shape[1:])
        self.losses: list[float] = []
        self._data = np.random.default_rng(1)

    def step(self) -> float:
        """One training step on fresh data; returns the loss."""
        x = self.runtime.tensor(self._data.standard_normal(self.shape).astype(np.float32))
        y = self.runtime.tensor(self._data.integers(0, CLASSES, self.shape[0]))
        loss = cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def demand(self) -> Demand:
        """Return what a step needs; the data are unchanged."""
        before = self._data.bit_generator.state
        try:
            return self.runtime.dry_run(self.step)
        finally:
            self._data.bit_generator.state = before

    def iterate(self) -> None:
        """Run one step inside ``runtime.iteration()``, and check all invariants."""
        with self.runtime.iteration():
            self.losses.append(self.step())
        self.runtime.check()

    def state(self) -> dict[str, bytes]:
        """Return all that training has changed, which must be the same under every policy and budget."""
        return state_of(self.runtime, self.model, self.optimizer, self.losses)


@dataclass(frozen=True)
class Outcome:
    """The results of a run."""

    state: dict[str, bytes]
    losses: tuple[float, ...]
    demand: Demand
    stats: Stats


@contextmanager
def checked_calls(runtime: minidl.Runtime) -> Iterator[None]:
    """Check every invariant of the memory after every call inside the ``with`` block."""
    executor = runtime.executor
    run = executor.run

    def checked(*arguments: Any) -> Any:
        outputs = run(*arguments)
        runtime.check()
        return outputs

    executor.run = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        del executor.run  # type: ignore[method-assign]


def train(network: str, *, steps: int = 2, optimizer: str = "momentum", checked: bool = False,
          batch: int | None = None, **runtime_options: Any) -> Outcome:
    """Train ``steps`` steps on a poisoned CPU arena; check every invariant after each step, or (``checked``) each call.

    The other options are those of ``minidl.Runtime``; without a budget memory is unlimited.
    """
    options = {"device": "cpu:virtual", "poisoned": True, "policy": "none", "memory_budget": UNLIMITED,
               "host_memory": UNLIMITED} | runtime_options
    runtime = minidl.Runtime(**options)
    with runtime:
        training = Training(runtime, network, optimizer, batch=batch)
        demand = training.demand()
        if checked:
            with checked_calls(runtime):
                for _ in range(steps):
                    training.iterate()
        else:
            for _ in range(steps):
                training.iterate()
        stats = runtime.stats()  # before reading the state, which also moves bytes
        return Outcome(training.state(), tuple(training.losses), demand, stats)


def differences(outcome: Outcome, reference: Outcome) -> list[str]:
    """Return the names of the pieces of state that differ in any byte."""
    assert outcome.state.keys() == reference.state.keys()
    return [name for name, value in reference.state.items() if outcome.state[name] != value]


# For tests of single operations -------------------------------------------------------------------------------------
UNIT = 256  # bytes of a tensor of 64 float32: one unit of the arena


def small_runtime(*, units: int = 1 << 12, policy: str = "passive", **options: Any) -> minidl.Runtime:
    """Return a runtime with a poisoned CPU arena of ``units`` units."""
    return minidl.Runtime(device="cpu:virtual", policy=policy, memory_budget=units * UNIT, poisoned=True,
                          **{"host_memory": UNLIMITED} | options)


def used_units(runtime: minidl.Runtime) -> int:
    """Check every invariant, and return the units of the arena in use."""
    runtime.check()
    used = runtime.stats().used_bytes
    assert used % UNIT == 0
    return used // UNIT


def leaf(runtime: minidl.Runtime, value: float = 1.0, *, units: int = 1, requires_grad: bool = False) -> Tensor:
    """Return an input of ``units`` units, filled with one value."""
    tensor = runtime.tensor(np.full(64 * units, value, np.float32))
    tensor.requires_grad = requires_grad
    return tensor


def drop(runtime: minidl.Runtime, tensor: Tensor) -> None:
    """Drop a tensor's bytes, as a policy that recomputes would."""
    assert runtime.memory.evict(tensor.storage.base, Action.DROP)
    assert tensor.status is RECOMPUTE


def exchange_arena(runtime: minidl.Runtime, arena: Any) -> None:
    """Replace the runtime's arena by another one, or by a wrapper."""
    memory = runtime.memory
    memory.arena = memory.state.arena = memory.allocator.arena = arena


def swap_out(runtime: minidl.Runtime, tensor: Tensor) -> None:
    """Swap a tensor out, as a policy that swaps would."""
    assert runtime.memory.evict(tensor.storage.base, Action.SWAP_OUT)
    assert tensor.status is OUT


@contextmanager
def launches(runtime: minidl.Runtime) -> Iterator[list[str]]:
    """Collect the names of the operations that the device launches, replays included."""
    device, names = runtime.device, []
    launch = device.launch

    def noted(name: str, *arguments: Any) -> int:
        names.append(name)
        return launch(name, *arguments)

    device.launch = noted  # type: ignore[method-assign]
    try:
        yield names
    finally:
        del device.launch  # type: ignore[method-assign]
