"""Training in a random world (``worlds``) on a device that watches (``watch``), with every promise checked.

Every invariant is checked after every call and every replayed call; what a plan makes the engine do is compared with
the plan; what was computed is compared, byte for byte, with an unmanaged run; at the end no byte may be left. What is
wrong raises an AssertionError: a ``Violation`` of the order of work or of values, a ``WrongResult``, or a plain one for
any other promise. The only excuse is a host that is full.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numba
import numpy as np
from watch import WatchedDevice
from worlds import AMPLE, Chance, Iteration, Program, World, world

from minidl import policies
from minidl.errors import OutOfMemory, UserError
from minidl.memory.guided.sequence import Actions
from minidl.memory.ledger import Demand
from minidl.memory.storage import Storage
from minidl.op import Op
from minidl.optim import optimizer
from minidl.plan.plan import AccessKey
from minidl.plan.trace import TensorId
from minidl.policies.auto import policy as auto
from minidl.runtime import Runtime
from minidl.runtime.stats import Stats

UNLIMITED = 1 << 21  # bytes: more than any of these networks needs
AUTO_WORK = 1e5  # calls that the search may simulate for a plan: enough for a plan, not for a good one
UPDATE_BYTES = 512  # parameters updated by one call: small, so that an update is several calls
NO_ACTIONS = Actions()


class WrongResult(AssertionError):
    """What was computed, or trained, is not what it is without memory management."""


@dataclass(frozen=True)
class Report:
    """What a simulated run did. ``full`` says that it ended early because the host was; ``actions`` counts the calls
    after which a plan wanted something, ``diverged`` the iterations that left their plan."""

    world: World
    full: bool
    stats: Stats
    actions: int
    diverged: int
    log: list[tuple[Any, ...]]

    @property
    def digest(self) -> str:
        """Of the event log: equal for equal logs, in any process."""
        return hashlib.sha256(repr(self.log).encode()).hexdigest()


@dataclass(frozen=True)
class Reference:
    """What a run without memory management ends with, what it saw, and what it needs."""

    state: dict[str, bytes]
    seen: list[bytes]
    demand: Demand


@lru_cache(maxsize=300)
def reference(seed: int) -> Reference:
    """The world of a seed without memory management."""
    of = world(seed)
    with small_work(), Runtime("cpu:virtual", policy="none", memory_budget=UNLIMITED, host_memory=0,
                               switches=of.switches) as runtime:
        program = Program(runtime, of)
        data = program._data.bit_generator.state
        demand = runtime.dry_run(lambda: program.iterate(Iteration("dry", -1, -1, ())))
        program._data.bit_generator.state = data
        program.seen.clear()
        for iteration in of.iterations:
            with runtime.iteration():
                program.iterate(iteration)
            program.litter.clear()
        return Reference(program.state(), program.seen, demand)


@contextmanager
def small_work() -> Iterator[None]:
    """Kernels, updates and searches of the size that these networks need."""
    threads = numba.get_num_threads()
    numba.set_num_threads(1)  # kernels this small only wait for each other's threads
    try:
        with (patch.object(optimizer, "CHUNK_BYTES", UPDATE_BYTES),
              patch.object(auto, "FIRST_WORK", AUTO_WORK)):
            yield
    finally:
        numba.set_num_threads(threads)


def simulate(seed: int) -> Report:
    """Train in the world of a seed. Raises AssertionError for whatever a right engine does not do; what else is raised
    is an engine's crash."""
    of, right = world(seed), reference(seed)
    least, peak = right.demand.largest_op_bytes, right.demand.unmanaged_peak_bytes
    draw = random.Random(seed + 2)
    device = WatchedDevice(of.profile, draw, jitter=of.jitter, stall_s=of.stall_s)
    policy = Chance(draw) if of.policy == "chance" else auto.Auto(rounds=3) if of.policy == "auto" \
        else policies.create(of.policy)
    budget = least + of.budget_share * max(0, peak - least) if of.feasible else draw.uniform(0.5, 0.95) * least
    runtime = Runtime(device, policy=policy, memory_budget=int(budget),
                      host_memory=int(of.host_share * peak), switches=of.switches)
    try:
        with small_work(), runtime:
            return _train(of, runtime, device, draw, right)
    except Exception as error:
        # What is left of a broken engine is past caring for: freeing it would only complain.
        runtime.memory.keeper.deallocate = lambda storage, **_: None  # type: ignore[method-assign]
        raise _first(error) from None


def _first(error: BaseException) -> BaseException:
    """What went wrong first: an engine that is broken raises more on the way out."""
    first, earlier = error, error.__context__
    while earlier is not None:
        first = first if isinstance(earlier, UserError) else earlier  # those are caught where room is made
        earlier = earlier.__context__
    return first


def _train(of: World, runtime: Runtime, device: WatchedDevice, draw: random.Random, right: Reference) -> Report:
    full = False
    following = Following(runtime)
    with checked(runtime, following):
        program = Program(runtime, of)
        litter = program.litter
        device.interrupt = lambda: litter.clear() if draw.random() < 0.03 else None
        try:
            for iteration in of.iterations:
                with runtime.iteration():
                    program.iterate(iteration)
        except OutOfMemory as error:
            if of.feasible:
                assert "host memory is full" in str(error) and of.host_share < 4.0, str(error)
            full = True
        except UserError as error:
            raise AssertionError(f"the engine refuses what runs without memory management: {error}") from error
        if program.seen != right.seen[:len(program.seen)]:
            raise WrongResult("what was computed differs")
        if not full:
            assert of.feasible, "an operation that is larger than the budget has run"
            assert len(program.seen) == len(right.seen)
            if program.state() != right.state:
                raise WrongResult("what was trained differs")
        stats = runtime.stats()
        if of.budget_share == AMPLE and of.policy != "chance":
            assert not (stats.recomputed_bytes or stats.swapped_out_bytes), "there was room for everything"
        device.interrupt = None
        litter.clear()
        del program
        runtime.memory.free_queued()
        assert not runtime.memory.live(), f"{runtime.memory.live()} are left"
        check(runtime)
        assert runtime.stats().used_bytes == runtime.stats().host_used_bytes == 0, "bytes are left"
    diverged = runtime.guide.diverged if runtime.guide is not None else 0
    return Report(of, full, stats, following.actions, diverged, device.log)


class Following:
    """Compares what the engine does for its plan with what the plan says, by an account of accesses of its own."""

    def __init__(self, runtime: Runtime) -> None:
        self.actions = 0  # calls after which there was something to do
        self._guide = runtime.guide
        self._counts: dict[TensorId, int] = {}
        self._acted: Actions = NO_ACTIONS
        if runtime.guide is not None:
            hooks = runtime.memory.state.hooks
            self._act = hooks.act
            hooks.act = self.act

    def act(self, actions: Actions, operands: Sequence[Storage]) -> None:
        """Note what the engine was told, and let it be done."""
        self._acted = actions
        self._act(actions, operands)

    def called(self, tensors: Sequence[Storage]) -> None:
        """A call has accessed these: what was done after it must be what its plan says."""
        acted, self._acted = self._acted, NO_ACTIONS
        keys = self.count(tensors)
        if self._guide is None or self._guide.active is None:
            return
        plan = self._guide.active.plan
        releases, prefetches, replays, spent, moves = (
            tuple(each for key in keys for each in orders.get(key, ()))
            for orders in (plan.releases, plan.prefetches, plan.replays, plan.spent, plan.moves))
        due = Actions({key[0]: plan.evictions[key] for key in keys if key in plan.evictions}, releases,
                      any(key in plan.waits for key in keys), prefetches, replays, spent, moves)
        assert acted == due, f"the plan wants {due} after this call, the engine did {acted}"
        self.actions += due != NO_ACTIONS

    def count(self, tensors: Sequence[Storage]) -> list[AccessKey]:
        """One more access of each of these."""
        keys = []
        for tensor_id in dict.fromkeys(storage.base.tensor_id for storage in tensors):
            self._counts[tensor_id] = count = self._counts.get(tensor_id, 0) + 1
            keys.append((tensor_id, count))
        return keys

    def ended(self) -> None:
        """An iteration is over: accesses count from one again."""
        self._counts.clear()


@contextmanager
def checked(runtime: Runtime, following: Following) -> Iterator[None]:
    """Check every invariant after every call, replayed call, value read and end of an iteration."""
    executor = runtime.executor
    run, read, end_iteration = executor.run, executor.read, executor.end_iteration
    replaying = runtime.memory.replaying
    replay_call = replaying.replay_call

    def checked_run(op: Op, inputs: tuple[Storage, ...], *rest: Any) -> tuple[Storage, ...]:
        outputs = run(op, inputs, *rest)
        if not op.view:
            following.called(inputs + outputs)
        check(runtime)
        return outputs

    def checked_read(storage: Storage) -> np.ndarray:
        value = read(storage)
        following.count((storage,))  # an access like any other, but nothing is done after it
        check(runtime)
        return value

    def checked_end(**options: Any) -> None:
        end_iteration(**options)
        following.ended()
        check(runtime)

    def checked_replay(*arguments: Any) -> None:
        replay_call(*arguments)
        check(runtime, idle=False)

    verbs = {"run": checked_run, "read": checked_read, "end_iteration": checked_end}
    for name, verb in verbs.items():
        setattr(executor, name, verb)
    setattr(replaying, "replay_call", checked_replay)  # noqa: B010 - a method, exchanged for one that checks
    try:
        yield
    finally:
        for name in verbs:
            delattr(executor, name)
        del replaying.replay_call


def check(runtime: Runtime, *, idle: bool = True) -> None:
    """Everything that must hold between two calls (``idle``), or between two replayed ones."""
    memory, state = runtime.memory, runtime.memory.state
    memory.check()
    assert memory.arena.used_bytes <= memory.arena.peak_bytes <= runtime.budget_bytes
    assert not state.arena_busy.on and not memory.runner._donors
    assert not idle or not (state.protected or state.writing), "a call left something in use"
    extents = sorted(extent for s in memory.live() if s.host for extent in s.host)
    for (start, nbytes), (following, _) in pairwise(extents):
        assert start + nbytes <= following, "two host copies share bytes"
