"""Random worlds of 2 to 8 ranks, each a thread with a device of its own on the virtual clock. All follows from a seed.

``survive`` trains in one and checks every promise: the bits of slices on one device, or an error on every rank; the
same exchanges in the same order; no wait without an end. A failure raises AssertionError.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Thread

import numpy as np
from random_networks import Network
from simulation import small_work

from minidl import Runtime, policies
from minidl.device import profiles
from minidl.device.cpu.device import VirtualCpu
from minidl.errors import OutOfMemory
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD, Adam
from minidl.policies.auto import policy as auto
from minidl.ranks import RanksDiverged
from minidl.ranks.group import GRADIENTS, NOTHING, STATES
from minidl.ranks.threads import ThreadRanks, threads

CLASSES, AMPLE, STEPS = 8, 1 << 22, 6
WATCHDOG_S = 900.0  # for a world, compilation included; most take less than a second
POLICIES = ("none", "passive", "capuchin", "auto", "capuchin-recompute", "dtr-swap")
HARMLESS = ("none", "none", "none", "other budgets", "gives up", "own iteration", "fails alike")
PARTING = ("raises", "is short of memory", "stops", "other batch", "other branch", "reads alone")


@dataclass(frozen=True)
class World:
    """Everything that decides one run. trouble: what happens to rank ``who`` in iteration ``when``, after ``layer``.
    delays: the probability that a rank sleeps before it meets the others. straggler: a rank on a slower device.
    divide: what the ranks divide."""

    seed: int
    count: int
    policy: str
    share: float
    batch: int
    trouble: str
    who: int
    when: int
    layer: int
    delays: float
    straggler: int
    divide: str

    @property
    def parts(self) -> bool:
        """True if the trouble ends the run."""
        return self.trouble in PARTING


def world(seed: int) -> World:
    """Return the world of a seed."""
    draw = random.Random(seed)
    count = draw.choice([2, 2, 3, 3, 4, 5, 6, 7, 8])
    trouble = draw.choice(HARMLESS if draw.random() < 0.6 else PARTING)
    return World(seed, count, draw.choice(POLICIES), draw.choice([0.0, 0.3, 0.6, draw.random()]),
                 2 * draw.randint(max((count + 1) // 2, 3), 6), trouble, draw.randrange(count), draw.randrange(STEPS),
                 draw.randrange(-1, 4), draw.choice([0.0, 0.1, 0.4]), draw.randrange(-1, count),
                 draw.choice([NOTHING, NOTHING, STATES, GRADIENTS]))


class Delayed(ThreadRanks):
    """A rank that sleeps now and then before it meets the others. passed: what it has compared with them, in order."""

    def __init__(self, ranks: ThreadRanks, of: World) -> None:
        super().__init__(ranks.rank, ranks.count, ranks._tensors, ranks._words, ranks.divide)
        self.passed: list[str] = []
        self._of, self._draw = of, random.Random(of.seed * 8 + ranks.rank)

    def _sleep(self) -> None:
        if self._draw.random() < self._of.delays / 10:
            time.sleep(self._draw.random() * 0.004 * (1 + 2 * (self._of.straggler == self.rank)))

    def require_alike(self, what: str) -> None:
        self._sleep()
        super().require_alike(what)
        self.passed.append(what)

    def swap(self, parts):
        self._sleep()
        return super().swap(parts)

    def agree(self, value):
        self._sleep()
        return super().agree(value)


class Program:
    """The training of a world on one runtime. With ``rank`` None it is the program of one device."""

    def __init__(self, runtime: Runtime, of: World, rank: int | None) -> None:
        self.runtime, self.of, self.rank = runtime, of, rank
        self.network = Network(random.Random(of.seed + 1), CLASSES)
        parameters = list(self.network.parameters())
        self.optimizer = Adam(parameters, lr=1e-3) if of.seed % 2 else SGD(parameters, lr=0.05, momentum=0.9)
        self.losses: list[bytes] = []

    def run(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Train; return the losses and all that training has changed."""
        of = self.of
        for number in range(STEPS):
            here = number == of.when and (self.rank == of.who or of.trouble == "fails alike")
            if here and of.trouble == "stops":
                return self.losses, {}
            try:
                with self.runtime.iteration():
                    self.step(number, of.trouble if here else "")
            except (ArithmeticError, OutOfMemory):
                pass
            if here and of.trouble == "own iteration" and self.rank is not None:
                with self.runtime.iteration():
                    (next(iter(self.network.parameters())) * 2.0).numpy()
        arrays = self.network.state_dict() | {f"optimizer.{key}": x.numpy()
                                              for key, x in self.optimizer.named_states().items()}
        return self.losses, {name: array.tobytes() for name, array in arrays.items()}

    def step(self, number: int, trouble: str) -> None:
        """Run one step, in which ``trouble`` happens."""
        of = self.of

        met = []

        def after(layer, x):
            if layer == of.layer:
                met.append(layer)
                self._meet(trouble, x)

        last = number == STEPS - 1 and of.batch - 2 >= of.count
        size = of.batch - 2 * last + 2 * (trouble == "other batch")  # an even number: some networks halve their batch
        data = np.random.default_rng([of.seed, number])
        images = data.standard_normal((16, *self.network.shape)).astype("float32")[:size]
        labels = data.integers(0, CLASSES, 16)[:size]
        self.optimizer.zero_grad()
        y = self.network(self.runtime.tensor(images), after, lambda layer, x: x)
        if trouble == "other branch":
            y = y + y.mean(0)
        loss = cross_entropy(y, self.runtime.tensor(labels))
        loss.backward()
        if not met:  # no such layer
            self._meet(trouble, y)
        self.optimizer.step()
        self.losses.append(loss.numpy().tobytes())

    def _meet(self, trouble, x):
        if trouble == "raises":
            raise ValueError("a rank has failed")
        if trouble == "is short of memory":
            raise OutOfMemory("a rank has no room")
        if trouble == "fails alike":
            raise ArithmeticError("all ranks have failed")
        if trouble == "gives up":
            self.runtime.memory.state.hooks.relent()
        if trouble == "reads alone":
            x.numpy()


@lru_cache(maxsize=64)
def reference(of: World) -> tuple[tuple[list[bytes], dict[str, bytes]], int, int]:
    """Return the outcome of slices on one device without memory management, the least budget of a rank, and its peak.
    """
    alike = replace(of, trouble=of.trouble if of.trouble == "fails alike" else "none")
    with Runtime("cpu:virtual", policy="none", memory_budget=AMPLE, host_memory=0, slices=of.count) as runtime:
        program = Program(runtime, alike, None)
        demand = runtime.dry_run(lambda: program.step(0, ""))
        program.losses.clear()
        return program.run(), demand.largest_op_bytes, demand.unmanaged_peak_bytes


def survive(seed: int) -> World:
    """Train in the world of a seed on threads, and check every promise. Raises AssertionError."""
    of = world(seed)
    with small_work():
        right, least, peak = reference(of)
        found: list[object] = [None] * of.count
        everyone = [Delayed(each, of) for each in threads(of.count, patience_s=2 * WATCHDOG_S,
                                                               divide=of.divide)]
        plans: list[list[object]] = [[] for _ in everyone]

        def go(ranks: Delayed) -> None:
            try:
                found[ranks.rank] = _train(ranks, of, least, peak, plans[ranks.rank])
            except BaseException as error:
                found[ranks.rank] = error
                ranks.fail()

        workers = [Thread(target=go, args=(ranks,), daemon=True) for ranks in everyone]
        for worker in workers:
            worker.start()
        ends = time.monotonic() + WATCHDOG_S
        for worker in workers:
            worker.join(max(0.0, ends - time.monotonic()))
    waiting = [worker for worker in workers if worker.is_alive()]
    if waiting:
        stack = "".join(traceback.format_stack(sys._current_frames()[waiting[0].ident])[-6:])
        for ranks in everyone:
            ranks.fail()
        raise AssertionError(f"{len(waiting)} ranks wait for ever, one of them here:\n{stack}")
    _check(of, found, right, plans, [ranks.passed for ranks in everyone])
    return of


def _train(ranks: Delayed, of: World, least: int, peak: int, plans: list[object]):
    draw = random.Random(of.seed * 16 + ranks.rank)
    cpu = profiles.get("cpu")
    slower = 5.0 if of.straggler == ranks.rank else 1.0
    profile = replace(cpu, link_out_bandwidth=1e9 * 10 ** draw.uniform(-1, 1),
                      link_in_bandwidth=1e9 * 10 ** draw.uniform(-1, 1), memory_bandwidth=cpu.memory_bandwidth / slower)
    share = of.share + (draw.random() * 0.3 if of.trouble == "other budgets" else 0.0)
    budget = AMPLE if of.policy == "none" else int(least + share * max(0, peak - least))
    policy = auto.Auto(rounds=2) if of.policy == "auto" else policies.create(of.policy)
    with Runtime(VirtualCpu("cpu:virtual", profile, poisoned=True), policy=policy, memory_budget=budget,
                 host_memory=AMPLE, ranks=ranks) as runtime:
        try:
            outcome = Program(runtime, of, ranks.rank).run()
            if runtime.guide is not None:
                plans.extend(entry.plan for entry in runtime.guide.entries)
            runtime.check()
            return outcome
        except BaseException:  # do not free the rest of a broken engine: that would only raise more errors
            runtime.memory.keeper.deallocate = lambda storage, **_: None  # type: ignore[method-assign]
            raise


def _check(of, found, right, plans, passed):
    longest = max(passed, key=len)
    for each in passed:
        assert each == longest[:len(each)], "the ranks made other exchanges"
        assert len(each) >= len(longest) - 1, "a rank went on alone"
    errors = [x for x in found if isinstance(x, BaseException)]
    if not errors:
        assert all(outcome == right for outcome in found), "the bits differ"
        assert not of.parts or of.trouble == "reads alone", "the trouble was not seen"
        assert all(each == plans[0] for each in plans), "the ranks follow other plans"
        return
    others = [x for x in errors if not isinstance(x, RanksDiverged)]
    if not of.parts:
        raise others[0] if others else errors[0]
    assert len(errors) == of.count, f"only {len(errors)} of {of.count} ranks ended with an error"
    wanted = ValueError if of.trouble == "raises" else RanksDiverged
    assert isinstance(found[of.who], wanted), found[of.who]
    if any(not isinstance(x, RanksDiverged) for rank, x in enumerate(found) if rank != of.who):
        raise others[0]
