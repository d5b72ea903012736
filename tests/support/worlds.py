"""Random worlds in which the engine has to train: everything follows from a seed.

A ``World`` is a budget, a host budget, link speeds, true durations, a policy, and a list of iterations that are not all
alike; a ``Program`` is trained in it. Knows no device and checks nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from random_networks import Network

import minidl
from minidl.device import profiles
from minidl.device.profiles import Profile
from minidl.dispatch import apply
from minidl.memory.switches import Switches
from minidl.op import Op
from minidl.ops.elementwise import SHIFT
from minidl.ops.loss import cross_entropy
from minidl.ops.update import add_, fill_
from minidl.optim import SGD, Adam, Optimizer
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import AccessKey, Action, Eviction, Move, Plan, Proposal
from minidl.plan.policy import Observation, OnDemand, Pressure, Residency
from minidl.plan.trace import TensorId, Trace
from minidl.runtime import Runtime, parameter
from minidl.tensor import Tensor

CLASSES = 8
BATCH = 8
MOST_BANKS = 4

KINDS = ("usual", "usual", "usual", "half a batch", "two gradients", "evaluation", "no update")
POLICIES = ("passive", "recompute", "dtr-swap", "dtr-swap", "capuchin", "capuchin-swap", "capuchin-recompute", "auto",
            "auto", "chance", "chance")
AMPLE = 4.0  # a share of the budget with which everything fits
INFEASIBLE = -1.0  # a share with which the largest operation does not fit
OFF = 0.15  # probability that each of the engine's features is switched off


@dataclass(frozen=True)
class Iteration:
    """The actions of one iteration besides training.

    After which layer (-1: none) a tensor is read or kept for the next iteration; after which layers one is left for the
    cycle collector.
    """

    kind: str
    read: int
    keep: int
    litter: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """Everything that decides one run.

    Shares are of the range from the smallest feasible budget (0) to the unmanaged peak (1), and of that peak for the
    host.
    banks       for some lasting tensors as large as the input, the layer whose output is added to each
    in_passing  each layer is updated, and its gradients are freed, as soon as backward has passed it
    """

    seed: int
    policy: str
    optimizer: str
    budget_share: float
    host_share: float
    profile: Profile
    jitter: float
    stall_s: float
    iterations: tuple[Iteration, ...]
    switches: Switches
    banks: tuple[int, ...] = ()
    in_passing: bool = False

    @property
    def feasible(self) -> bool:
        """True if the budget is enough for the largest operation."""
        return self.budget_share >= 0.0


def world(seed: int) -> World:
    """Return the world of a seed."""
    draw = random.Random(seed)
    policy = draw.choice(POLICIES)
    nominal = profiles.get("cpu")
    speed, latency = lambda: 10.0 ** draw.uniform(-1, 1), draw.choice([0.0, 5e-7, 5e-6])
    profile = replace(nominal, link_out_bandwidth=1e9 * speed(), link_in_bandwidth=1e9 * speed(),
                      memory_bandwidth=nominal.memory_bandwidth * speed(), link_latency_s=latency,
                      launch_overhead_s=draw.choice([0.0, 2e-7, 5e-6]))  # the host far ahead of the device, or not
    iterations = []
    for number in range(draw.choice([4, 5, 6])):
        # First three equal iterations, so that there is something to plan; then some that differ.
        usual = number < 3 or draw.random() < 0.4
        read, keep = (draw.randrange(5) if draw.random() < 0.3 and not usual else -1 for _ in range(2))
        litter = tuple(layer for layer in range(6) if draw.random() < 0.4)
        iterations.append(Iteration("usual" if usual else draw.choice(KINDS), read, keep, litter))
    budget_share = draw.choice([0.0, draw.random() ** 2, draw.random()])
    optimizer = draw.choice(["sgd", "momentum", "adam"])
    budget_share = AMPLE if draw.random() < 0.1 else budget_share
    rare = random.Random(~seed)  # a separate generator, so that older worlds stay the same
    banks = tuple(rare.randrange(5) for _ in range(rare.randint(1, MOST_BANKS))) if rare.random() < 0.2 else ()
    in_passing = rare.random() < 0.15
    return World(seed, policy, optimizer, banks=banks, in_passing=in_passing,
                 budget_share=INFEASIBLE if rare.random() < 0.05 else budget_share,
                 host_share=draw.choice([4.0, 4.0, 1.0, 0.8, draw.random()]), profile=profile,
                 jitter=draw.choice([0.0, 0.5]), stall_s=draw.choice([0.0, 1e-5, 1e-3]), iterations=tuple(iterations),
                 switches=Switches(**{feature.name: draw.random() >= OFF for feature in fields(Switches)}))


class Chance(OnDemand):
    """A policy with random plans and victims: any plan may cost time, none may cost correctness."""

    name = "chance"
    plans = True
    weighs_recomputation = True

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def victims(self, resident: Sequence[Residency], pressure: Pressure) -> Sequence[Eviction]:
        order = self.draw.sample(resident, len(resident))
        return [Eviction(r.tensor_id, self._action()) for r in order]

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        evictions: dict[AccessKey, Action] = {}
        prefetches: dict[AccessKey, tuple[TensorId, ...]] = {}
        accesses, often = trace.accesses, self.draw.random() ** 2
        for position, access in enumerate(accesses):
            if self.draw.random() < often:
                evictions[access.tensor_id, access.access_count] = self._action()
                trigger = accesses[min(len(accesses) - 1, position + self.draw.randrange(40))]
                key = (trigger.tensor_id, trigger.access_count)
                prefetches[key] = (*prefetches.get(key, ()), access.tensor_id)
        # For every other program, without a random draw, so that worlds known by their seeds stay the same.
        waits = [(a.tensor_id, a.access_count) for a in accesses[::7]] if len(accesses) % 2 else []
        moves = {(a.tensor_id, a.access_count): tuple(
            move for move in (Move(accesses[n // 2].tensor_id, 256 * (n % 64)), Move(a.tensor_id, 0))
            if move.offset + trace.tensors[move.tensor_id].nbytes <= limits.device_bytes)
            for n, a in enumerate(accesses)} if len(accesses) % 3 else {}
        return Proposal(Plan(evictions, prefetches, waits=frozenset(waits), moves=moves))

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        return self.plan(observed.trace, observed.costs, observed.limits)

    def _action(self) -> Action:
        return self.draw.choice([Action.SWAP_OUT, Action.DROP])


_passed: list[Callable[[], None]] = []  # called when backward passes the latest call of PASSED


def _pass(needs: tuple[bool, ...], dy: Tensor) -> tuple[Tensor]:
    _passed.pop()()
    return (dy,)


PASSED: Op = replace(SHIFT, vjp=_pass)  # adds nothing, if that is its value


class Program:
    """The trained program: the same calls on any runtime. ``seen``: all values that it has read, as bytes."""

    def __init__(self, runtime: Runtime, of: World) -> None:
        self.runtime = runtime
        self.world = of
        self.network = Network(random.Random(of.seed + 1), CLASSES)
        layers = [list(layer.parameters()) for layer in (*self.network.layers, self.network.head)]
        # One optimizer for all, or one for each layer with parameters.
        self.optimizers = [self._optimizer(parameters) if parameters else None for parameters in (
            layers if of.in_passing else [list(self.network.parameters())])]
        self.banks = [parameter((BATCH, *self.network.shape), requires_grad=False) for _ in of.banks]
        for bank in self.banks:
            fill_(bank, 0.0)
        self.seen: list[bytes] = []
        self.kept: list[Tensor] = []
        self.litter: list[Tensor] = []  # clearing it stands for the cycle collector
        self._data = np.random.default_rng(of.seed)

    def _optimizer(self, parameters: list[Tensor]) -> Optimizer:
        kind = self.world.optimizer
        if kind == "adam":
            return Adam(parameters, lr=1e-3)
        return SGD(parameters, lr=0.05) if kind == "sgd" else SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)

    def iterate(self, iteration: Iteration) -> None:
        """Run one iteration."""
        kept, self.kept = self.kept, []
        if iteration.kind == "evaluation":
            with minidl.no_grad():
                self._see(self._loss(iteration))
        else:
            optimizers = [each for each in self.optimizers if each is not None]
            for optimizer in optimizers:
                optimizer.zero_grad()
            for _ in range(2 if iteration.kind == "two gradients" else 1):
                try:
                    loss = self._loss(iteration)
                    loss.backward()
                finally:
                    _passed.clear()
            if iteration.kind != "no update":
                for optimizer in optimizers:
                    optimizer.step()
            self._see(loss)
        for tensor in kept:
            self._see(tensor)

    def _loss(self, iteration: Iteration) -> Tensor:
        def after(layer: int, x: Tensor) -> None:
            if layer == iteration.read:
                self._see(x)
            if layer == iteration.keep:
                self.kept.append(x)
            if layer in iteration.litter:
                self.litter.append(x)
            if len(images) == BATCH:
                for bank, at in zip(self.banks, self.world.banks, strict=True):
                    if at == layer:
                        add_(bank, images)

        def before(layer: int, x: Tensor) -> Tensor:
            if not (self.world.in_passing and iteration.kind == "usual"):
                return x
            _passed.append(lambda: self._update(layer))
            passed: Tensor = apply(PASSED, x, value=0.0)
            return passed

        batch = BATCH // 2 if iteration.kind == "half a batch" else BATCH
        images = self.runtime.tensor(self._data.standard_normal((batch, *self.network.shape)).astype(np.float32))
        labels = self.runtime.tensor(self._data.integers(0, CLASSES, batch))
        return cross_entropy(self.network(images, after, before), labels)

    def _update(self, layer: int) -> None:
        """Update a layer when backward has passed it and all gradients of its parameters have arrived."""
        optimizer = self.optimizers[layer]
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    def _see(self, tensor: Tensor) -> None:
        self.seen.append(tensor.numpy().tobytes())

    def state(self) -> dict[str, bytes]:
        """Return all that training has changed."""
        arrays = self.network.state_dict() | {f"bank {n}": bank.numpy() for n, bank in enumerate(self.banks)}
        for number, optimizer in enumerate(self.optimizers):
            if optimizer is not None:
                arrays |= {f"state {number} {k}": v for k, v in optimizer.state_dict().items()}
        arrays |= {f"gradient {name}": p.grad.numpy() for name, p in self.network.named_parameters()
                   if p.grad is not None}
        return {name: array.tobytes() for name, array in arrays.items()}
