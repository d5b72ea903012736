"""An operation whose aligned working set fits the budget always runs; one that does not fails cleanly.

Sizes are in units of 256 bytes. Values are sums of small whole numbers, exact in float32.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import (
    UNIT,
    Training,
    checked_calls,
    differences,
    leaf,
    small_runtime,
    swap_out,
    train,
    used_units,
)

import minidl
from minidl.errors import OutOfMemory
from minidl.memory.storage import IN
from minidl.ops.elementwise import add, exp, scale, shift, sum_to
from minidl.ops.layernorm import layer_norm
from minidl.ops.shape import concat
from minidl.ops.update import add_
from minidl.runtime import Runtime
from minidl.tensor import Tensor

ARENA = 16  # units


# Random programs ----------------------------------------------------------------------------------------------------
# What the program does, each with the working set it needs in units; operands are picked by number, modulo what there
# is. "make" uploads, "add" and "cat" read two tensors, "step" writes one in place, "drop" gives a handle up.
COMMANDS = st.lists(st.tuples(st.sampled_from(["make", "make", "shift", "add", "cat", "step", "give up", "end"]),
                              st.integers(0, 11), st.integers(0, 11)), min_size=10, max_size=60)


def value(tensor: Tensor) -> float:
    """The value that every element has."""
    (only,) = set(tensor.numpy().ravel().tolist())
    return only


Kept = list[tuple[Tensor, float]]  # tensors of one value, and the value


def execute(runtime: Runtime, kept: Kept, command: str, a: int, b: int, serial: int) -> None:
    """One command; skipped only if what it needs is more than the arena."""
    if command == "make" or not kept:
        kept.append((leaf(runtime, float(serial), units=1 + a % 8), float(serial)))
        return
    if command == "give up":
        del kept[a % len(kept)]
        return
    if command == "end":
        with runtime.iteration():
            return
    (x, x_value), (y, y_value) = kept[a % len(kept)], kept[b % len(kept)]
    both = (x.nbytes + y.nbytes) // UNIT
    if command == "shift":
        kept.append((shift(x, 1.0), x_value + 1))  # never needs more than its input, which may be written over
    elif command == "cat" and x is not y and 2 * both <= ARENA:
        total = concat([x, y], axis=0)  # the inputs may lie anywhere; the output needs one piece
        assert value(total.narrow(0, 0, x.numel())) == x_value
        assert value(total.narrow(0, x.numel(), y.numel())) == y_value
    elif x.numel() == y.numel() and x is not y and both <= ARENA:
        if command == "add":
            kept.append((add(x, y), x_value + y_value))
        elif command == "step":
            add_(x, y)
            kept[a % len(kept)] = (x, x_value + y_value)


def interpret(runtime: Runtime, commands: list[tuple[str, int, int]]) -> None:
    """Run a program in ARENA units beside what it should compute, with at most 12 tensors at a time."""
    kept: Kept = []
    for serial, (command, a, b) in enumerate(commands):
        execute(runtime, kept, command, a, b, serial)
        del kept[:-12]
        runtime.check()
    while kept:
        tensor, expected = kept.pop()
        assert value(tensor) == expected
        del tensor
    assert runtime.stats().peak_bytes <= ARENA * UNIT
    assert not runtime.memory.live() and runtime.stats().host_used_bytes == 0 and used_units(runtime) == 0


@pytest.mark.default(policy=["dtr-swap"])
@pytest.mark.parametrize("policy", ["passive", "recompute", "dtr-swap"])
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(commands=COMMANDS)
def test_every_random_program_runs_in_the_working_set_of_its_largest_operation(policy, commands):
    with small_runtime(units=ARENA, policy=policy) as runtime:
        interpret(runtime, commands)


@pytest.mark.default(policy=["recompute"])
@pytest.mark.parametrize("policy", ["passive", "recompute", "dtr-swap"])
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(commands=COMMANDS, host=st.integers(0, 40))
def test_with_little_host_memory_a_random_program_computes_the_same_or_fails_once(policy, commands, host):
    with small_runtime(units=ARENA, policy=policy, host_memory=host * UNIT) as runtime:
        try:
            interpret(runtime, commands)
        except OutOfMemory as error:
            message = str(error)  # and nothing else of it, so that its frames die, and all their tensors
            assert "host memory is full" in message
        runtime.check()
        assert not runtime.memory.live() and used_units(runtime) == 0
        assert runtime.stats().host_peak_bytes <= host * UNIT


# Sliding ------------------------------------------------------------------------------------------------------------
def layout(runtime: Runtime) -> str:
    """The arena, a letter for each unit: ``.`` is free."""
    text = ""
    for number, block in enumerate(runtime.memory.arena.blocks()):
        text += ("." if block.owner is None else chr(ord("a") + number)) * (block.size // UNIT)
    return text


@contextmanager
def nothing_swapped(runtime: Runtime):
    before = runtime.stats()
    yield
    after = runtime.stats()
    assert (after.swapped_out_bytes, after.recomputed_bytes) == (before.swapped_out_bytes, before.recomputed_bytes)


@pytest.mark.parametrize("gap", range(1, 7))
def test_inputs_in_use_that_split_the_space_are_moved(gap):
    """Arena of 12 units: x and y are in use, with the free 8 around them cut in three. The output needs all 8."""
    with small_runtime(units=12) as runtime:
        holes = [leaf(runtime, units=gap)]
        x = leaf(runtime, 3.0, units=2)
        holes.append(leaf(runtime, units=7 - gap))
        y = leaf(runtime, 5.0, units=2)
        holes.clear()
        assert layout(runtime) == "." * gap + "bb" + "." * (7 - gap) + "dd" + "."
        with nothing_swapped(runtime):
            wide = concat([x, y, x, y], axis=0)
        assert used_units(runtime) == 12 and runtime.stats().moved_bytes > 0
        assert wide.numpy().tolist() == ([3.0] * 128 + [5.0] * 128) * 2
        assert value(x) == 3.0 and value(y) == 5.0


def test_the_cheaper_of_moving_and_evicting_is_chosen():
    """Moving costs memory bandwidth, evicting the link both ways; a copy that is on the host already is cheap too."""
    with small_runtime(units=8) as runtime:
        a, b, c, d = (leaf(runtime, float(i), units=2) for i in range(4))
        del a, c
        assert layout(runtime) == "..bb..dd"
        with nothing_swapped(runtime):
            e = leaf(runtime, 9.0, units=4)
        assert runtime.stats().moved_bytes == 2 * UNIT  # b, or d; not both
        assert [float(t.numpy()[0]) for t in (b, d, e)] == [1.0, 3.0, 9.0]


def test_a_host_too_small_for_what_is_large_is_full_though_what_has_no_bytes_would_find_room():
    with small_runtime(units=21, policy="auto", host_memory=8 * UNIT) as runtime:
        large, empty = leaf(runtime, units=16), runtime.tensor(np.zeros((0, 4), np.float32))
        x = leaf(runtime, units=4)
        with pytest.raises(OutOfMemory, match="host memory is full") as refused:
            add(x, x)  # of 4 units, with 1 free, and x may not be written over
        assert refused.value.host_full and large.status is IN and empty.shape == (0, 4)


def test_with_a_full_host_inputs_are_moved_rather_than_swapped():
    with small_runtime(units=9, host_memory=0) as runtime:
        hole = leaf(runtime, units=4)
        x = leaf(runtime, 3.0)
        del hole
        assert layout(runtime) == "....b...."
        y = concat([x] * 8, axis=0)
        assert value(y) == value(x) == 3.0
        assert runtime.stats().moved_bytes == UNIT


def test_a_workspace_is_never_a_reason_to_fail():
    """A device whose fastest convolution takes a large workspace, on any number of threads: in an arena without room
    for it, it does with less, with the same bits; with room, it is part of what is used, and of what must fit."""
    def run(units: int) -> tuple[bytes, int, int]:
        with small_runtime(units=units, policy="none") as runtime, minidl.no_grad():
            algorithms = runtime.device.algorithms
            runtime.device.algorithms = lambda *call: tuple(
                a if number else replace(a, seconds=a.seconds / 1000, workspace=4 * a.workspace)
                for number, a in enumerate(algorithms(*call)))
            layer = minidl.nn.Conv2d(8, 8, 3, padding=1)
            x = runtime.tensor(np.random.default_rng(0).standard_normal((4, 8, 16, 16)).astype(np.float32))
            before = runtime.stats().used_bytes
            need = runtime.dry_run(lambda: layer(x)).unmanaged_peak_bytes
            y = layer(x)
            after = runtime.stats()
            assert after.used_bytes == before + y.nbytes
            return y.numpy().tobytes(), need, after.peak_bytes
    result, need, peak = run(1 << 12)
    assert peak > 1.3 * need
    assert run(need // UNIT) == (result, need, need)
    assert run((peak - UNIT) // UNIT) == (result, need, need)
    assert run(peak // UNIT) == (result, need, peak)
    with pytest.raises(OutOfMemory, match="conv2d"):
        run(need // UNIT - 1)


# Persistent storages ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["passive", "recompute"])
def test_an_output_makes_way_for_a_later_one_of_its_call_by_lying_over_an_input(policy):
    """x, gamma and beta, y over x, mean and variance: five units. y finds a free one, which the last one needs."""
    with small_runtime(units=5, policy=policy) as runtime:
        x = scale(leaf(runtime, 2.0), 1.0).reshape((1, 64))
        gamma, beta = leaf(runtime, 3.0), leaf(runtime, 4.0)
        y = layer_norm(x, gamma, beta)
        assert set(y.numpy().ravel()) == {4.0} and set(x.numpy().ravel()) == {2.0}
        runtime.check()


def test_parameters_are_swapped_like_anything_else():
    """Forty parameters of 4 units in an arena of 12: each step reads all of them, and writes all of them."""
    def run(units: int) -> tuple[list[bytes], int]:
        with small_runtime(units=units) as runtime:
            weights = [minidl.parameter((256,)) for _ in range(40)]
            for i, w in enumerate(weights):
                w.fill_(float(i))
            for _ in range(2):
                with runtime.iteration():
                    for w in weights:
                        w.grad = None
                        sum_to(w * w, (1,)).backward()
                    for w in weights:
                        add_(w, w.grad)
                runtime.check()
            return [w.numpy().tobytes() for w in weights], runtime.stats().swapped_out_bytes
    expected, unswapped = run(4096)
    got, swapped = run(12)
    assert got == expected and unswapped == 0 and swapped > 40 * 4 * UNIT


def test_persistent_and_long_lived_tensors_grow_from_the_other_end():
    with small_runtime(units=12) as runtime:
        w = minidl.parameter((64,))
        w.fill_(2.0)
        x = leaf(runtime)
        loss = (w * x).sum()
        assert layout(runtime)[0] != "." and layout(runtime)[-1] != "."
        assert w.storage.block.offset == 11 * UNIT and x.storage.block.offset == 0
        loss.backward()


# Failing cleanly ----------------------------------------------------------------------------------------------------
def test_what_does_not_fit_is_refused_with_the_numbers():
    with small_runtime(units=8) as runtime:
        x, y = leaf(runtime, units=3), leaf(runtime, 2.0, units=2)
        with pytest.raises(OutOfMemory) as error:
            concat([x, y], axis=0)
        # Both inputs, 5 units, are in use beside the output's 5.
        assert str(error.value) == ("concat: need 1.2 KiB beside 1.2 KiB in use by it; 768 B of 2.0 KiB free, "
                                    "0 tensors resident")
        assert (error.value.op, error.value.need_bytes, error.value.budget_bytes) == ("concat", 10 * UNIT, 8 * UNIT)
        assert used_units(runtime) == 5 and x.status is y.status is IN
        with pytest.raises(OutOfMemory, match=r"upload: need 2.2 KiB beside 0 B in use by it"):
            leaf(runtime, units=9)
        runtime.check()
        assert value(x) == 1.0
        swap_out(runtime, x)
        with pytest.raises(OutOfMemory, match="concat"):
            concat([y, x], axis=0)
        runtime.check()
        assert (value(x), value(y)) == (1.0, 2.0)
        assert value(add(x.narrow(0, 0, 128), y)) == 3.0


def test_a_parameter_that_does_not_fit_is_refused():
    with small_runtime(units=8) as runtime:
        with pytest.raises(OutOfMemory, match="allocate: need 2.2 KiB"):
            minidl.parameter((64 * 9,))
        assert used_units(runtime) == 0
        w = minidl.parameter((64 * 8,))
        assert used_units(runtime) == 8 and w.tensor_id < 0


@pytest.mark.default(policy=["passive", "none"])
@pytest.mark.parametrize("policy", ["passive", "recompute", "dtr-swap", "none"])
def test_after_a_step_that_did_not_fit_a_smaller_batch_trains_as_if_nothing_had_happened(policy):
    """VGG at 16 images needs 10 tensors' room; 64 images do not fit the arena of 16 images' peak."""
    def run(disturbed: bool) -> dict[str, bytes]:
        with small_runtime(units=4400, policy=policy) as runtime:
            training = Training(runtime, "vgg", "momentum", batch=16)
            for number in range(3):
                if disturbed and number:
                    before = training._data.bit_generator.state, dict(runtime.counters)
                    used = sorted(s.tensor_id for s in runtime.memory.live())
                    training.shape = (1024, *training.shape[1:])
                    with pytest.raises(OutOfMemory, match="need [0-9.]+ MiB"):
                        training.iterate()
                    runtime.check()
                    # The step begins with zero_grad(); it may have got that far.
                    assert {s.tensor_id for s in runtime.memory.live() if s.tensor_id < 0} == {i for i in used if i < 0}
                    training.shape = (16, *training.shape[1:])
                    training._data.bit_generator.state = before[0]
                    runtime.counters.update(before[1])  # the seeds that the failed step had drawn
                training.iterate()
            return training.state()
    assert run(True) == run(False)


def test_every_call_holds_the_invariants_with_a_nearly_full_host():
    reference = train("branching", steps=2)
    peak = reference.demand.unmanaged_peak_bytes
    outcome = train("branching", steps=2, policy="passive", memory_budget=peak * 6 // 10, host_memory=peak * 3 // 10,
                    checked=True)
    assert differences(outcome, reference) == []
    assert outcome.stats.recomputed_bytes > 0


def test_checking_after_every_call_sees_a_corrupted_record():
    with small_runtime() as runtime, checked_calls(runtime):
        x = leaf(runtime)
        y = scale(x, 2.0)
        block, y.storage.block = y.storage.block, None
        with pytest.raises(AssertionError, match="disagree"):
            exp(x)
        y.storage.block = block
