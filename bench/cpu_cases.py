"""The training steps that are timed on the CPU: networks, sizes and data, the step in minidl, and its runtimes.

``bench/torch_cases.py`` has the same steps in PyTorch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidl import Runtime, device, models, policies
from minidl.cli.app.default_memory import default_memory
from minidl.meta import int64
from minidl.models import bert
from minidl.models.text import Text
from minidl.ops import cross_entropy
from minidl.optim import SGD, Adam, Optimizer
from minidl.policies.auto.policy import Auto

BATCH = 32
CLASSES = 1000
LEARNING_RATE = 1e-3
PLANS = 8  # that `auto` tries, one an iteration


@dataclass(frozen=True)
class Case:
    """A network and its input: images of ``size`` pixels a side, or sequences of ``size`` tokens."""

    name: str
    size: int
    text: bool = False


CASES = {case.name: case for case in (Case("resnet18", 64), Case("vgg11", 64), Case("resnet50", 96),
                                      Case("bert-small", 128, text=True))}


@dataclass(frozen=True)
class Images:
    """A batch of images of random noise, with random labels."""

    values: np.ndarray
    labels: np.ndarray


def images(case: Case, batch: int) -> Images:
    """Make a batch of images of noise for a case: the same values for every framework."""
    rng = np.random.default_rng(0)
    return Images(rng.standard_normal((batch, 3, case.size, case.size), np.float32), rng.integers(CLASSES, size=batch))


def training_step(runtime: Runtime, case: Case, batch: int = BATCH) -> Callable[[], float]:
    """Return a function that carries out one training step: upload, forward, backward, optimizer; it returns the loss.

    The optimizer is SGD with momentum, or Adam for text.
    """
    text = Text(length=case.size)
    data = None if case.text else images(case, batch)
    model = models.create(case.name, **{} if case.text else {"num_classes": CLASSES, "image_size": case.size})
    optimizer: Optimizer = (Adam(model.parameters(), lr=LEARNING_RATE) if case.text
                            else SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9))

    def step() -> float:
        with runtime.iteration():
            optimizer.zero_grad()
            if data is None:
                loss = bert.loss(model, bert.synthetic_batch(runtime, batch, text))
            else:
                loss = cross_entropy(model(runtime.tensor(data.values)), runtime.tensor(data.labels, dtype=int64))
            loss.backward()
            optimizer.step()
            return loss.item()
    return step


def runtime_for(budget_bytes: int | None, policy: str) -> Runtime:
    """Make a runtime on the CPU device, with ``budget_bytes`` (None: all of its memory) under ``policy``."""
    budget, host = default_memory(device.create("cpu"))
    if budget_bytes is None:
        return Runtime("cpu", memory_budget=budget, host_memory=0, policy="none")
    chosen = Auto(rounds=PLANS) if policy == "auto" else policies.create(policy)
    return Runtime("cpu", memory_budget=budget_bytes, host_memory=host, policy=chosen)


def half_of_peak(runtime: Runtime, step: Callable[[], float]) -> int:
    """Return half of the runtime's peak bytes so far, or the bytes of the step's largest operation if that is more."""
    return part_of_peak(runtime, step, 50)


def part_of_peak(runtime: Runtime, step: Callable[[], float], percent: int) -> int:
    """Return a part of the runtime's peak bytes so far, or those of the step's largest operation if that is more."""
    return max(runtime.stats().peak_bytes * percent // 100, runtime.dry_run(step).largest_op_bytes)
