"""Eviction on demand under `auto`: swapping from the front of the access list against weighing recomputation."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.support.steps import training_step
from minidl import Runtime, models
from minidl.models import bert
from minidl.models.text import Text
from minidl.optim import AdamW
from minidl.plan.plan import Eviction
from minidl.plan.policy import Pressure, Residency
from minidl.policies.auto.policy import Auto
from minidl.policies.passive import Passive

Step = Callable[[], None]


class Front(Auto):
    """The same planner over the paper's passive mode."""

    weighs_recomputation = False

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Those of passive mode, from the front of the access list."""
        return Passive().victims(resident, pressure)


def text_step(runtime: Runtime, name: str) -> Callable[[int, int], None]:
    """A step of a BERT with AdamW, for a batch and a length."""
    model = models.create(name)
    optimizer = AdamW(model.parameters(), lr=1e-4)

    def step(batch: int, length: int) -> None:
        optimizer.zero_grad()
        bert.loss(model, bert.synthetic_batch(runtime, batch, Text(length=length))).backward()
        optimizer.step()

    return step


def step_of(runtime: Runtime, name: str, batch: int) -> Step:
    """A step of a network for images, or of a BERT at its usual length."""
    if not name.startswith("bert"):
        return training_step(runtime, name, batch)
    step = text_step(runtime, name)
    return partial(step, batch, 128)


def three_lengths(runtime: Runtime) -> Iterator[Step]:
    """bert-small at 256, lengths in turn, each twice: none has a plan yet."""
    step = text_step(runtime, "bert-small")
    for length in (96, 128, 64) * 2:
        yield partial(step, 256, length)


def random_branch(runtime: Runtime) -> Iterator[Step]:
    """ResNet-50 and ResNet-101 by lot at 400: the second time that one follows the other it has no plan."""
    steps = [training_step(runtime, name, 400) for name in ("resnet50", "resnet101")]
    draw = random.Random(0)
    for _ in range(4):
        yield draw.choice(steps)


def other_batch(runtime: Runtime) -> Iterator[Step]:
    """ResNet-50 at 1,014 until it is planned, then twice at 900."""
    usual, other = (training_step(runtime, "resnet50", batch) for batch in (1014, 900))
    yield from (usual, usual, usual, other, other)


def seconds(policy: Auto, program: Callable[[Runtime], Iterator[Step]], budget: str | None) -> float:
    """Device seconds of a program's iterations."""
    with Runtime(device="sim:p100", policy=policy, memory_budget=budget) as runtime:
        start = runtime.stats().seconds
        for step in program(runtime):
            with runtime.iteration():
                step()
        return runtime.stats().seconds - start


def speeds(policy: Auto, name: str, batch: int) -> list[float]:
    """Images, or sequences, a second in each of the first three iterations."""
    with Runtime(device="sim:p100", policy=policy) as runtime:
        step = step_of(runtime, name, batch)
        found, before = [], runtime.stats()
        for _ in range(3):
            with runtime.iteration():
                step()
            now = runtime.stats()
            found.append(batch / now.since(before).seconds)
            before = now
    return found
