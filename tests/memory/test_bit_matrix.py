"""Bit for bit, the whole matrix: five networks x every policy x five budgets x three optimizers x both clocks.

A few of its cells run by default, all of them with ``-m full`` (about a thousand trainings, half an hour). A cell
trains until plans are followed, and compares losses, every gradient, parameters, optimizer state, running statistics
and random state with those of an unlimited run.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from networks import NETWORKS, OPTIMIZERS, UNLIMITED, state_of

import minidl
from minidl import models, nn, policies
from minidl.memory.ledger import Demand
from minidl.models.bert import BertConfig, BertForPreTraining
from minidl.models.text import Text
from minidl.ops.loss import cross_entropy
from minidl.policies.auto import policy as auto
from minidl.policies.literature import SOLVERS, SYSTEMS
from minidl.runtime.stats import Stats


class Case(NamedTuple):
    """A network; what one step is fed; and the loss of these inputs."""

    make: Callable[[], nn.Module]
    inputs: Callable[[minidl.Runtime, np.random.Generator], tuple[Any, ...]]
    loss: Callable[..., Any] = lambda model, images, labels: cross_entropy(model(images), labels)


def images(shape: tuple[int, ...], classes: int, runtime: minidl.Runtime, rng: np.random.Generator, *,
           pixels: bool = False) -> tuple[Any, ...]:
    of_each = (shape[0], *shape[2:]) if pixels else (shape[0],)
    return (runtime.tensor(rng.standard_normal(shape).astype(np.float32)),
            runtime.tensor(rng.integers(0, classes, of_each)))


def words(runtime: minidl.Runtime, rng: np.random.Generator) -> tuple[Any, ...]:
    return models.bert.synthetic_batch(runtime, 12, Text(length=16, predictions=4, vocabulary=50),
                                       seed=int(rng.integers(1 << 30)))


CASES = {
    **{name: Case(NETWORKS[name][0], partial(images, NETWORKS[name][1], 10))
       for name in ("vgg", "resnet", "branching")},  # the last one has dense blocks
    "bert": Case(lambda: BertForPreTraining(BertConfig(2, 32, 4, vocab_size=50, max_position_embeddings=16)), words,
                 lambda model, *inputs: model(*inputs)),
    "unet": Case(lambda: models.unet.UNet(width=4), partial(images, (4, 3, 32, 32), 2, pixels=True), models.unet.loss),
}
# "none" evicts nothing, "exact" takes tiny traces, and systems of the literature have tests of their own.
POLICIES = sorted(set(policies.POLICIES) - {"none", "exact", *(SYSTEMS.keys() - SOLVERS)})
BUDGETS = (100, 75, 50, 35, 0)  # percent of the unmanaged peak; 0: the largest operation, and not a byte more
STEPS = {"cpu:virtual": 5, "cpu": 7}  # one to warm up, one or three to measure, and then by plan
MATRIX = list(product(CASES, POLICIES, BUDGETS, OPTIMIZERS, STEPS))
FEW = [MATRIX[n] for n in np.random.default_rng(7).choice(len(MATRIX), 12, replace=False)]


class Outcome(NamedTuple):
    """What a training has left."""

    state: dict[str, bytes]
    demand: Demand
    stats: Stats


def train(name: str, optimizer: str, device: str, *, policy: str = "none", budget: int = UNLIMITED) -> Outcome:
    case = CASES[name]
    with minidl.Runtime(device, policy=policy, memory_budget=budget, host_memory=1 << 28 if policy != "none" else 0,
                        poisoned=device == "cpu:virtual") as runtime:
        model = case.make()
        update = OPTIMIZERS[optimizer](model)
        losses = []

        def step(rng: np.random.Generator) -> Any:
            loss = case.loss(model, *case.inputs(runtime, rng))
            update.zero_grad()
            loss.backward()
            update.step()
            return loss
        demand = runtime.dry_run(lambda: step(np.random.default_rng(0)))
        rng = np.random.default_rng(1)
        for _ in range(STEPS[device]):
            with runtime.iteration():
                losses.append(step(rng).item())
            runtime.check()
        return Outcome(state_of(runtime, model, update, losses), demand, runtime.stats())


@cache
def unlimited(name: str, optimizer: str, device: str) -> Outcome:
    # Room for twice what the dry run finds: an arena without end would be taken from the machine.
    return train(name, optimizer, device, budget=1 << 27)


def check(name: str, policy: str, percent: int, optimizer: str, device: str) -> None:
    reference = unlimited(name, optimizer, device)
    demand = reference.demand
    budget = max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * percent // 100)
    outcome = train(name, optimizer, device, policy=policy, budget=budget)
    assert outcome.stats.peak_bytes <= budget
    if percent <= 50:
        assert outcome.stats.swapped_out_bytes + outcome.stats.recomputed_bytes > 0
    assert outcome.state.keys() == reference.state.keys()
    assert [key for key, value in reference.state.items() if outcome.state[key] != value] == []


@pytest.fixture(autouse=True)
def short_searches(monkeypatch):
    monkeypatch.setattr(auto, "FIRST_WORK", 2e5)


@pytest.mark.default(cell=FEW[:4])
@pytest.mark.parametrize("cell", FEW,
                         ids=lambda cell: "-".join(map(str, cell)))
def test_a_cell_of_the_matrix(cell):
    check(*cell)


@pytest.mark.full
@pytest.mark.parametrize(("name", "policy"), list(product(CASES, POLICIES)))
def test_the_whole_matrix(name, policy):
    for cell in MATRIX:
        if cell[:2] == (name, policy):
            check(*cell)


def test_the_clocks_agree():
    """A training has one result, whoever measures the time."""
    for name in CASES:
        virtual, real = (unlimited(name, "adam", device) for device in STEPS)
        first = "losses"
        steps = STEPS["cpu:virtual"]
        assert virtual.state[first] == real.state[first][:8 * steps]
