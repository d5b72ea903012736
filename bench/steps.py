"""What the benchmarks share: a training step of a known model on a simulated GPU, repeated and read off."""

from collections.abc import Callable
from dataclasses import dataclass

import models
from minidl import Runtime
from minidl.memory.switches import ALL_ON, Switches
from minidl.meta import int64
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.runtime import Stats

UNLIMITED = 1 << 50  # bytes


@dataclass(frozen=True)
class Run:
    """The last of several equal training steps: its counters, and those of the run (peaks)."""

    batch: int
    last: Stats
    best_seconds: float

    @property
    def images_per_second(self) -> float:
        return self.batch / self.last.seconds


def training_step(runtime: Runtime, name: str, batch: int) -> Callable[[], None]:
    """A step (forward, backward, SGD with momentum) of a model in the current runtime, on inputs without values."""
    model = models.create(name)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    shape = (batch, *models.find(name).input_shape)

    def step() -> None:
        optimizer.zero_grad()
        images = runtime.tensor(None, shape=shape)
        labels = runtime.tensor(None, shape=(batch,), dtype=int64)
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def run(name: str, batch: int, policy: str, *, steps: int = 3, device: str = "sim:p100",
        budget: int | str | None = None, switches: Switches = ALL_ON) -> Run:
    """Train a few steps. Raises OutOfMemory."""
    with Runtime(device=device, policy=policy, memory_budget=budget, switches=switches) as runtime:
        step = training_step(runtime, name, batch)
        before = runtime.stats()
        best = float("inf")
        for _ in range(steps):
            with runtime.iteration():
                step()
            now = runtime.stats()
            last, before = now.since(before), now
            best = min(best, last.seconds)
    return Run(batch, last, best)


def unmanaged(name: str, batch: int, *, device: str = "sim:p100", switches: Switches = ALL_ON) -> Run:
    """The same step with unlimited memory."""
    return run(name, batch, "none", device=device, budget=UNLIMITED, switches=switches)
