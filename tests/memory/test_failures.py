"""The n-th allocation, host allocation or copy of an iteration fails, for every n; once, or all from then on.

The result is the same, or there is one clear error, nothing is leaked, and the same step succeeds as soon as memory
can be had again. The network is small enough that no n has to be left out; ``test_faults`` has larger steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from networks import exchange_arena
from simulation import small_work
from watch import WatchedDevice
from worlds import Chance

from minidl import nn
from minidl.device import profiles
from minidl.errors import OutOfMemory
from minidl.memory.ledger import Demand
from minidl.memory.storage import OUT
from minidl.meta import aligned
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
from minidl.runtime import Runtime

BATCH, WIDTH, CLASSES = 32, 16, 4
NEVER = 1 << 30
WARM = 3  # iterations before the one that fails: that has a plan, where the policy plans


class CopyFailed(RuntimeError):
    """What a driver may say to any copy."""


class Faults:
    """Counts the calls of one kind from ``arm`` on. The n-th, from 0, fails, or all from it on."""

    def __init__(self, runtime: Runtime, kind: str) -> None:
        self.count = 0
        self._fails: Callable[[int], bool] = lambda number: False
        memory, device = runtime.memory, runtime.device
        if kind == "allocation":
            exchange_arena(runtime, FaultyArena(memory.arena, self))
        elif kind == "host allocation":
            memory.allocator.host = FaultyPool(memory.allocator.host, self)
        else:
            for name in ("copy_out", "copy_in"):
                setattr(device, name, self._failing(getattr(device, name)))

    def arm(self, n: int, *, for_good: bool) -> None:
        """Let the n-th call from now fail."""
        self.count = 0
        self._fails = (lambda number: number >= n) if for_good else (lambda number: number == n)

    def disarm(self) -> None:
        """All works again."""
        self._fails = lambda number: False

    @property
    def lasting(self) -> bool:
        """Whether the last call failed and the next will too."""
        return self.count > 0 and self._fails(self.count - 1) and self._fails(self.count)

    def due(self) -> bool:
        """Count a call; whether it fails."""
        self.count += 1
        return self._fails(self.count - 1)

    def _failing(self, copy: Callable[..., int]) -> Callable[..., int]:
        def failing(*arguments: Any) -> int:
            if self.due():
                raise CopyFailed("a copy failed")
            return copy(*arguments)
        return failing


class FaultyArena:
    """An arena in which nothing is found: once, or because somebody else has all of it from then on. Asking again for
    what was not found is no new call: room has been made for it, and the arena is believed to have it."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self._real = real
        self._faults = faults
        self._again = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def allocate(self, *arguments: Any, **options: Any) -> Any:
        fails = self._faults.lasting if self._again else self._faults.due()
        found = None if fails else self._real.allocate(*arguments, **options)
        self._again = found is None
        return found

    @property
    def free_bytes(self) -> int:
        return 0 if self._faults.lasting else self._real.free_bytes

    @property
    def largest_free(self) -> int:
        return 0 if self._faults.lasting else self._real.largest_free


class FaultyPool:
    """A host pool that refuses."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def allocate(self, nbytes: int) -> Any:
        return None if self._faults.due() else self._real.allocate(nbytes)


class Small(nn.Sequential):
    """[N, 16] -> [N, 4]: activations, one of them in place, and dropout; no statistics, so that a step that fails
    half-way has changed nothing that its repetition reads."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(),
                         nn.Dropout(0.2), nn.Linear(WIDTH, CLASSES))


class Step:
    """A training step that can be repeated after a failure: data and seeds are those of its number."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.model = Small()
        self.optimizer = SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def __call__(self, number: int) -> None:
        data = np.random.default_rng(number)
        self.runtime.counters["seeds"] = 1000 * (number + 1)
        with self.runtime.iteration():
            x = self.runtime.tensor(data.standard_normal((BATCH, WIDTH)).astype(np.float32))
            loss = cross_entropy(self.model(x), self.runtime.tensor(data.integers(0, CLASSES, BATCH)))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def state(self) -> dict[str, bytes]:
        arrays = self.model.state_dict() | {f"state {k}": v for k, v in self.optimizer.state_dict().items()}
        return {name: array.tobytes() for name, array in arrays.items()}


@cache
def demand() -> Demand:
    """What a step needs."""
    with Runtime("cpu:virtual", policy="none", memory_budget=1 << 21) as plenty:
        step = Step(plenty)
        return plenty.dry_run(lambda: step(0))


def runtime_of(policy: str) -> Runtime:
    """A watched device with half of what an unmanaged step needs, and host memory of twice that."""
    peak = demand().unmanaged_peak_bytes
    draw = random.Random(0)
    return Runtime(WatchedDevice(profiles.get("cpu"), draw), policy=Chance(draw) if policy == "chance" else policy,
                   memory_budget=max(demand().largest_op_bytes, peak // 2), host_memory=2 * peak)


def train_through(kind: str, policy: str, n: int, *, for_good: bool) -> tuple[dict[str, bytes], str, int]:
    """Steps without a fault, one with it, again if that failed, and one more. The final state, the error, and how often
    what fails was asked for."""
    with small_work(), runtime_of(policy) as runtime:
        memory, log, step = runtime.memory, runtime.device.log, Step(runtime)
        for number in range(WARM):
            step(number)
        weights, momenta = step.model.state_dict(), step.optimizer.state_dict()
        persistent = {s.tensor_id for s in memory.live() if s.tensor_id < 0}
        faults = Faults(runtime, kind)
        faults.arm(n, for_good=for_good)
        began, message = len(log), ""
        try:
            step(WARM)
        except (OutOfMemory, CopyFailed) as error:
            message = str(error)  # and nothing else of it, so that its frames die, and all their tensors
        asked = faults.count
        faults.disarm()
        runtime.check()
        state = memory.state
        assert not (state.protected or state.writing or memory.runner._donors or state.arena_busy.on)
        if message:
            for parameter in step.model.parameters():
                parameter.grad = None
            memory.free_queued()
            live = memory.live()
            assert {s.tensor_id for s in live} == persistent  # all else is gone, on the device and on the host
            assert runtime.stats().host_used_bytes == sum(s.nbytes for s in live if s.host is not None)
            assert runtime.stats().used_bytes == sum(aligned(s.nbytes) for s in live if s.status is not OUT)
            del live
            if any(event[0] == "sgd_momentum_" for event in log[began:]):  # some of it was updated, which is no fault
                step.model.load_state_dict(weights)
                step.optimizer.load_state_dict(momenta)
            step(WARM)
        step(WARM + 1)
        return step.state(), message, asked


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    with small_work(), Runtime("cpu:virtual", policy="none", memory_budget=1 << 21) as runtime:
        step = Step(runtime)
        for number in range(WARM + 2):
            step(number)
        return step.state()


FULL = [pytest.param(policy, 1, marks=pytest.mark.full)
        for policy in ("chance", "recompute", "passive", "capuchin", "auto")]


@pytest.mark.default(policy=["chance"], kind=["allocation"], for_good=[False])
@pytest.mark.parametrize("kind, for_good", [
    ("allocation", False), ("allocation", True), ("host allocation", False), ("host allocation", True),
    ("copy", False),  # from then on would be the same: the first one ends the iteration
])
@pytest.mark.parametrize("policy, apart", [("chance", 3), *FULL])
def test_whichever_fails_the_result_is_the_same_or_one_clear_error(policy, apart, kind, for_good, expected):
    state, message, calls = train_through(kind, policy, NEVER, for_good=for_good)
    assert state == expected and not message
    assert calls >= 3
    errors, tried = 0, range(0, calls, apart)
    for n in tried:
        state, message, asked = train_through(kind, policy, n, for_good=for_good)
        assert asked > n
        assert state == expected, f"call {n} failed"
        assert not message or message == "a copy failed" or ": need " in message
        errors += bool(message)
    if kind == "copy":
        assert errors == len(tried)
    elif kind == "allocation":
        assert errors >= len(tried) // 2 if for_good else not errors  # a second look finds room
