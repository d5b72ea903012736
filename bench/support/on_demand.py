"""Eviction on demand under `auto`: swapping from the front of the access list against weighing recomputation."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from minidl import Runtime
from minidl.lab.training_step import TrainedNetwork, training_step
from minidl.models.text import Text
from minidl.plan.plan import Eviction
from minidl.plan.policy import Pressure, Residency
from minidl.policies.auto.policy import Auto
from minidl.policies.passive import Passive

Step = Callable[[], None]


class Front(Auto):
    """The policy ``auto`` with the victims of Capuchin's passive mode."""

    weighs_recomputation = False
    regime = Passive.regime

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        """Return the victims of passive mode: tensors from the front of the access list."""
        return Passive().victims(resident, pressure)


def three_lengths(runtime: Runtime) -> Iterator[Step]:
    """Yield steps of bert-small at 256 with three lengths of sequences in turn, each twice: none has a plan yet."""
    network = TrainedNetwork("bert-small", 256)

    def step(length: int) -> None:
        network.text = Text(length=length)
        network.step()

    for length in (96, 128, 64) * 2:
        yield partial(step, length)


def random_branch(runtime: Runtime) -> Iterator[Step]:
    """Yield steps of ResNet-50 or ResNet-101 at 400, drawn by lot.

    When one follows the other for the second time, there is no plan for this order yet.
    """
    steps = [training_step(name, 400) for name in ("resnet50", "resnet101")]
    draw = random.Random(0)
    for _ in range(4):
        yield draw.choice(steps)


def other_batch(runtime: Runtime) -> Iterator[Step]:
    """Yield steps of ResNet-50 at 1,014 until it has a plan, then two steps at 900."""
    usual, other = (training_step("resnet50", batch) for batch in (1014, 900))
    yield from (usual, usual, usual, other, other)


def seconds(policy: Auto, program: Callable[[Runtime], Iterator[Step]], budget: str | None) -> float:
    """Run a program's iterations under a policy; return their device seconds."""
    with Runtime(device="sim:p100", policy=policy, memory_budget=budget) as runtime:
        start = runtime.stats().seconds
        for step in program(runtime):
            with runtime.iteration():
                step()
        return runtime.stats().seconds - start


def speeds(policy: Auto, name: str, batch: int) -> list[float]:
    """Return images, or sequences, a second in each of the first three iterations."""
    with Runtime(device="sim:p100", policy=policy) as runtime:
        step = training_step(name, batch)
        found, before = [], runtime.stats()
        for _ in range(3):
            with runtime.iteration():
                step()
            now = runtime.stats()
            found.append(batch / now.since(before).seconds)
            before = now
    return found
