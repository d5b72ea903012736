"""Searches for memory that fail on purpose, one at a time: the result is the same, or one clear error after which the
step can be repeated; and nothing is leaked either way.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from networks import UNIT, Training, exchange_arena, small_runtime, train, used_units

from minidl.errors import OutOfMemory
from minidl.memory.shortage import out_of_memory
from minidl.memory.storage import OUT
from minidl.meta import aligned
from minidl.runtime import Runtime

Fault = Callable[[Runtime, int], AbstractContextManager[None]]


class Faulty:
    """An arena or a host pool whose n-th first look, from 0, finds nothing. Looking again after a failure is not a
    first look: room has been made for it."""

    def __init__(self, real: Any, n: int) -> None:
        self.real = real
        self.remaining = n
        self.again = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def allocate(self, *arguments: Any, **options: Any) -> Any:
        self.remaining -= not self.again
        found = None if self.remaining == -1 and not self.again else self.real.allocate(*arguments, **options)
        self.again = found is None
        return found


@contextmanager
def arena_fails(runtime: Runtime, n: int) -> Iterator[None]:
    real = runtime.memory.arena
    exchange_arena(runtime, Faulty(real, n))
    yield
    exchange_arena(runtime, real)


@contextmanager
def host_fails(runtime: Runtime, n: int) -> Iterator[None]:
    allocator, real = runtime.memory.allocator, runtime.memory.allocator.host
    allocator.host = Faulty(real, n)
    yield
    allocator.host = real


@contextmanager
def making_room_fails(runtime: Runtime, n: int) -> Iterator[None]:
    room, make_room, remaining = runtime.memory.room, runtime.memory.room.make, [n]

    def make_room_or_fail(nbytes: int, pinned: set[Any], op_name: str) -> None:
        remaining[0] -= 1
        if remaining[0] == -1:
            raise out_of_memory(room.state, nbytes, op_name, in_use=0, pinned=pinned, evictable=[], alone=False)
        make_room(nbytes, pinned, op_name)

    room.make = make_room_or_fail
    yield
    del room.make


def train_through(fault: Fault, n: int, policy: str) -> tuple[dict[str, bytes], str]:
    """One undisturbed iteration, one with a fault and, if that failed, the same again; the final state and the error.

    The network has no batch norm: a step that fails half-way has changed nothing that the next one reads.
    """
    with small_runtime(units=1800, policy=policy) as runtime:
        training, memory = Training(runtime, "vgg", "momentum"), runtime.memory
        training.iterate()
        persistent = {s.tensor_id for s in memory.live() if s.tensor_id < 0}
        data, counters = training._data.bit_generator.state, dict(runtime.counters)
        message = ""
        with fault(runtime, n):
            try:
                training.iterate()
            except OutOfMemory as error:
                message = str(error)  # and nothing else of it, so that its frames die, and all their tensors
        runtime.check()
        assert not memory.state.protected and not memory.state.writing and not memory.runner._donors
        if message:
            for parameter in training.model.parameters():
                parameter.grad = None
            live = memory.live()
            assert {s.tensor_id for s in live} == persistent  # all else is gone, on the device and on the host
            assert runtime.stats().host_used_bytes == sum(s.nbytes for s in live if s.host is not None)
            assert used_units(runtime) * UNIT == sum(aligned(s.nbytes) for s in live if s.status is not OUT)
            del live
            training._data.bit_generator.state = data
            runtime.counters.update(counters)
            training.iterate()
        return training.state(), message


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    return train("vgg", steps=2).state


@pytest.mark.default(policy=["passive"])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_whichever_allocation_fails_first_the_result_is_the_same(policy, expected):
    for n in range(0, 240, 8):
        state, message = train_through(arena_fails, n, policy)
        assert state == expected
        assert not message  # a second look finds room


@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_whichever_host_allocation_fails_the_result_is_the_same_or_one_clear_error(policy, expected):
    for n in range(12):
        state, message = train_through(host_fails, n, policy)
        assert state == expected
        assert not message or ": need " in message


@pytest.mark.default(policy=["recompute"])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_wherever_memory_runs_out_nothing_is_leaked_and_the_step_can_be_repeated(policy, expected):
    """The n-th search for room fails: in the forward pass, in replays, in swapping in, in the optimizer."""
    failures = 0
    for n in [*range(8), *range(8, 150, 6)]:
        state, message = train_through(making_room_fails, n, policy)
        assert state == expected
        failures += bool(message)
        if not message:
            break
    assert failures > 8
