"""The poisoned arena is a detector: bytes that are read too early, or after they were given away, show as NaN.

Here the engine is broken on purpose, one wait at a time, with copies that the host does not wait for; each break must
be seen. With all waits in place the same asynchronous copies change no bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from networks import UNIT, leaf, small_runtime, swap_out

import minidl
from minidl import nn
from minidl.device.clock import COMPUTE, COPY_IN, COPY_OUT, NO_MARKS, STREAM_NAMES
from minidl.dispatch import apply_all
from minidl.memory.storage import IN, OUT
from minidl.ops.elementwise import scale
from minidl.ops.update import add_, fill_
from minidl.optim import SGD
from minidl.runtime import Runtime, parameter


# Bytes that nobody wrote --------------------------------------------------------------------------------------------
def test_memory_that_was_never_written_reads_as_nan():
    with small_runtime() as runtime:
        w = parameter((64,))
        assert np.isnan(w.numpy()).all()
        fill_(w, 0.0)
        runtime.memory.arena.reset_peak()
        assert not np.isnan(w.numpy()).any()


def test_memory_that_was_freed_reads_as_nan():
    with small_runtime(units=1) as runtime:
        x = leaf(runtime, 5.0)
        del x
        assert np.isnan(parameter((64,)).numpy()).all()  # the same bytes: there are no others


def test_memory_that_was_swapped_out_reads_as_nan():
    with small_runtime(units=2) as runtime:
        x = leaf(runtime, 5.0)
        offset = x.storage.block.offset
        swap_out(runtime, x)
        w = parameter((64,))
        v = parameter((64,))
        assert offset in (w.storage.block.offset, v.storage.block.offset)
        assert np.isnan(w.numpy()).all() and np.isnan(v.numpy()).all()


def test_memory_that_a_moved_block_left_behind_reads_as_nan():
    with small_runtime(units=5) as runtime:
        hole, x = leaf(runtime, 1.0, units=2), leaf(runtime, 5.0)
        del hole
        w = parameter((64 * 4,))  # x moves down to make one piece of 2 + 2
        assert runtime.stats().moved_bytes == UNIT or x.status is not IN
        assert np.isnan(w.numpy()).all() and set(x.numpy()) == {5.0}


def test_a_tensor_read_through_a_stale_record_is_nan():
    """What a bug in the count of uses would do."""
    with small_runtime() as runtime:
        x, kept = leaf(runtime), leaf(runtime, 7.0)
        y = scale(x, 5.0)
        assert not np.isnan(y.numpy()).any()
        y.storage.release()  # one use too few: the bytes go while the handle is there
        y.storage.block = kept.storage.block
        assert set(runtime.device.read(y.storage)) == {7.0}  # the record is believed ...
        block = runtime.memory.arena.allocate(UNIT, "test")
        y.storage.block = block
        assert np.isnan(runtime.device.read(y.storage)).all()  # ... and shows that its old bytes are gone
        runtime.memory.arena.free(block, NO_MARKS)
        y.storage.block = None
        y.storage.refs = 1


def test_an_arena_that_is_not_poisoned_keeps_the_old_bytes():
    runtime = minidl.Runtime(device="cpu:virtual", memory_budget=UNIT)
    with runtime:
        x = leaf(runtime, 5.0)
        del x
        assert set(parameter((64,)).numpy()) == {5.0}


# Waits --------------------------------------------------------------------------------------------------------------
@contextmanager
def asynchronous(runtime: Runtime, *, without: tuple[int, int] | None = None) -> Iterator[None]:
    """The host waits for no copy; nor does the stream ``without[0]`` for the stream ``without[1]``."""
    device = runtime.device
    synchronize, wait = device.synchronize, device.wait

    def host_waits(stream: int, position: int) -> None:
        if stream == COMPUTE:
            synchronize(stream, position)

    def stream_waits(stream: int, on: int, position: int) -> None:
        if (stream, on) != without:
            wait(stream, on, position)

    device.synchronize, device.wait = host_waits, stream_waits
    try:
        yield
    finally:
        del device.synchronize, device.wait
        for stream, position in enumerate(device.positions):
            synchronize(stream, position)


class Stack(nn.Sequential):
    """Convolutions, batch norms and activations; all its values are floats, so that each can be poisoned."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
        for _ in range(5):
            layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh()]
        super().__init__(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 16))


PEAK = 6700  # units


def run(policy: str, percent: int, *, swaps: str = "synchronous",
        without: tuple[int, int] | None = None) -> tuple[dict[str, np.ndarray], Runtime]:
    """Two training steps in so many percent of the peak; parameters, statistics and gradients."""
    with small_runtime(units=PEAK * percent // 100, policy=policy) as runtime:
        model = Stack()
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
        images = np.random.default_rng(0).standard_normal((2, 16, 3, 16, 16)).astype(np.float32)

        def steps() -> None:
            for batch in images:
                with runtime.iteration():
                    y = model(runtime.tensor(batch))
                    loss = (y * y).sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        if swaps == "asynchronous":
            with asynchronous(runtime, without=without):
                steps()
        else:
            steps()
        state = model.state_dict() | {f"{name}.grad": p.grad.numpy() for name, p in model.named_parameters()}
        return state, runtime


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    state, runtime = run("passive", 200)
    assert runtime.stats().swapped_out_bytes == 0
    assert 0.9 < runtime.stats().peak_bytes / (PEAK * UNIT) <= 1.0
    return state


def has_nan(state: dict[str, np.ndarray]) -> bool:
    return any(np.isnan(array).any() for array in state.values())


@pytest.mark.parametrize("percent", [35, 50, 75])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_copies_that_the_host_does_not_wait_for_change_no_bit(policy, percent, expected):
    state, runtime = run(policy, percent, swaps="asynchronous")
    assert all(state[name].tobytes() == expected[name].tobytes() for name in expected)
    if policy == "passive":
        assert runtime.stats().swapped_out_bytes > 0


WAITS = [(COMPUTE, COPY_IN), (COMPUTE, COPY_OUT), (COPY_OUT, COMPUTE), (COPY_IN, COMPUTE)]


@pytest.mark.parametrize("wait", WAITS, ids=[f"{STREAM_NAMES[a]} on {STREAM_NAMES[b]}" for a, b in WAITS])
def test_a_missing_wait_between_streams_shows_as_nan(wait, expected):
    state, _ = run("passive", 35, swaps="asynchronous", without=wait)
    assert has_nan(state) and not has_nan(expected)


def test_a_missing_wait_for_host_bytes_in_use_shows_in_the_values():
    """Host memory for A alone. A is on its way in when its host copy is given up for B's, which is shorter and so
    would be there before A has been read."""
    def first_of_a(without: tuple[int, int] | None) -> float:
        with small_runtime(units=9, host_memory=8 * UNIT) as runtime:
            b, a = leaf(runtime, 2.0), leaf(runtime, 1.0, units=8)
            swap_out(runtime, a)
            with asynchronous(runtime, without=without):
                runtime.memory.make_resident((a.storage,), "test")
                more = [leaf(runtime, 3.0), leaf(runtime, 4.0)]  # the second takes B's place
                assert b.status is not IN and a.status is IN and a.storage.host is None
            assert [float(t.numpy()[0]) for t in more] == [3.0, 4.0]
            return float(a.numpy()[0])
    assert first_of_a(None) == 1.0
    assert first_of_a((COPY_OUT, COPY_IN)) == 2.0


def test_a_missing_wait_for_a_copy_still_on_its_way_out_shows_in_the_values():
    """X is wanted again before its copy out has begun, which waits for a long queue of kernels. Until then the host
    bytes hold what was there before. Its new place was never used, so that nothing else has to be waited for."""
    def first_of_x(without: tuple[int, int] | None) -> float:
        with small_runtime() as runtime:
            for units in (1, 1000):
                scale(leaf(runtime, 1.0, units=units), 1.0)  # the first call of its kind waits for its kernel
            arena = runtime.memory.arena
            unused, wall = arena.allocate(UNIT, "test"), arena.allocate(UNIT, "test")
            before = leaf(runtime, 7.0)
            swap_out(runtime, before)
            del before
            big = leaf(runtime, 1.0, units=1000)
            with asynchronous(runtime, without=without):
                for _ in range(50):
                    big = scale(big, 1.0)
                x = scale(leaf(runtime, 5.0), 1.0)
                swap_out(runtime, x)
                others = []
                while arena.largest_free:
                    others.append(arena.allocate(arena.largest_free, "test"))
                arena.free(unused, NO_MARKS)
                runtime.memory.make_resident((x.storage,), "test")
            for block in (wall, *others):
                arena.free(block, NO_MARKS)
            return float(x.numpy()[0])
    assert first_of_x(None) == 5.0
    assert first_of_x((COPY_IN, COPY_OUT)) == 7.0


def test_a_copy_into_bytes_that_a_move_left_behind_waits_for_the_move():
    """Arena of 4000 units: B (1000) has 1000 free on its left and 2000 on its right, and a long queue of writes. C
    (3000) comes back from the host as soon as B has been moved down, and no sooner."""
    with small_runtime(units=4000) as runtime:
        c = leaf(runtime, 3.0, units=3000)
        swap_out(runtime, c)
        hole, b = leaf(runtime, 1.0, units=1000), leaf(runtime, 2.0, units=1000)
        del hole
        with asynchronous(runtime):
            for i in range(50):
                fill_(b, float(i))
            runtime.memory.make_resident((c.storage,), "test")
        assert b.storage.block.offset == 0 and runtime.stats().moved_bytes == 1000 * UNIT
        assert set(b.numpy()) == {49.0} and set(c.numpy()) == {3.0}


def test_an_update_in_place_waits_for_the_copy_that_reads_the_old_bytes():
    """W is being copied out, and stays, when it is written: the copy must have the old bytes, or be given up."""
    with small_runtime() as runtime:
        w, one = leaf(runtime, 1.0, units=64), leaf(runtime, 1.0, units=64)
        with asynchronous(runtime):
            for _ in range(3):
                swap_out(runtime, w)
                add_(w, one)
        assert set(w.numpy()) == {4.0}


def test_launching_on_bytes_that_are_elsewhere_shows_as_nan():
    """The executor forgets to make an input resident: its old place has been poisoned."""
    with small_runtime(units=4) as runtime:
        x = leaf(runtime, 5.0)
        block = x.storage.block
        swap_out(runtime, x)
        x.storage.status, x.storage.block = IN, block
        (y,) = apply_all(scale(leaf(runtime), 2.0).storage.call.op, x, value=2.0)
        assert np.isnan(y.numpy()).all()
        del y
        x.storage.block = None
        x.storage.status = OUT
        assert set(x.numpy()) == {5.0}
