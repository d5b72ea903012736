"""Data lives while someone may still ask for it, and not a moment longer; records never need the cycle collector.

Sizes are in units of 256 bytes: tensors of 64 float32.
"""

import gc
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from networks import UNIT, Training, drop, launches, leaf, small_runtime, swap_out, used_units

import minidl
from minidl.errors import OutOfMemory
from minidl.memory.bytes.block import Block
from minidl.memory.storage import Call, Storage, View
from minidl.ops.elementwise import add, exp, relu, scale, tanh
from minidl.ops.shape import permute
from minidl.ops.update import add_
from minidl.tensor import Tensor

OURS = (Storage, View, Call, Tensor, Block)


def alive() -> Counter[str]:
    """How many records and handles exist. (How many blocks is a matter of how the arena is cut up.)"""
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in OURS[:-1])


@contextmanager
def no_collector() -> Iterator[None]:
    """Without the cycle collector; at the end there is nothing of ours for it to find."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(thing).__name__ for thing in gc.garbage if type(thing) in OURS)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found, f"only the cycle collector could free {dict(found)}"


# Handles ------------------------------------------------------------------------------------------------------------
def test_bytes_are_freed_with_the_last_handle():
    with small_runtime() as runtime:
        x = leaf(runtime)
        y = scale(x, 2.0)
        other = y.alias()
        assert used_units(runtime) == 2
        del y
        assert used_units(runtime) == 2 and float(other.numpy()[0]) == 2.0
        del other
        assert used_units(runtime) == 1
        del x
        assert used_units(runtime) == 0


def test_an_intermediate_is_freed_while_its_descendant_lives():
    with small_runtime() as runtime:
        x = leaf(runtime)
        y = scale(scale(scale(x, 2.0), 2.0), 2.0)
        assert used_units(runtime) == 2  # x and y: the two between are records without bytes
        assert float(y.numpy()[0]) == 8.0


def test_a_leaf_keeps_its_bytes_as_long_as_a_descendants_record_lives():
    with small_runtime() as runtime:
        x = leaf(runtime)
        y = scale(scale(x, 2.0), 2.0)
        del x
        assert used_units(runtime) == 2
        drop(runtime, y)
        assert float(y.numpy()[0]) == 4.0  # it could be computed again because x is still there
        del y
        assert used_units(runtime) == 0


def test_a_view_keeps_its_base_and_nothing_else():
    with small_runtime() as runtime:
        x = leaf(runtime, units=2)
        y = scale(x, 3.0)
        part = permute(y.reshape((2, 64)), (1, 0)).narrow(1, 1, 1)
        del y
        assert used_units(runtime) == 4  # the base is kept whole
        assert part.numpy().tolist() == [[3.0]] * 64
        swap_out(runtime, part)
        assert used_units(runtime) == 2 and part.numpy().tolist() == [[3.0]] * 64
        drop(runtime, part)
        assert used_units(runtime) == 2 and part.numpy().tolist() == [[3.0]] * 64
        del part
        assert used_units(runtime) == 2
        del x
        assert used_units(runtime) == 0


def test_bytes_on_the_host_are_freed_with_the_last_handle():
    with small_runtime() as runtime:
        x = leaf(runtime)
        y = scale(x, 2.0)
        swap_out(runtime, y)
        assert runtime.stats().host_used_bytes == UNIT
        del y
        assert runtime.stats().host_used_bytes == 0
        swap_out(runtime, x)
        del x
        assert runtime.stats().host_used_bytes == 0 == used_units(runtime)


# What a gradient needs ----------------------------------------------------------------------------------------------
def test_a_saved_tensor_lives_until_its_gradient_was_taken():
    with small_runtime() as runtime:
        w = leaf(runtime, 0.5, requires_grad=True)
        y = exp(w)  # saved by its own call
        z = tanh(y)
        del y
        assert used_units(runtime) == 3
        loss = z.sum()
        del z
        assert used_units(runtime) == 4  # w, y, z (both saved), the sum
        loss.backward()
        assert w.grad is not None
        expected = (1 - np.tanh(np.exp(np.float32(0.5))) ** 2) * np.exp(np.float32(0.5))
        assert np.allclose(w.grad.numpy(), expected, rtol=1e-5)  # float32, three roundings
        assert used_units(runtime) == 3  # w, its gradient, the loss


def test_what_a_call_saved_is_freed_with_it_even_if_its_record_lives_on():
    with small_runtime() as runtime:
        w = leaf(runtime, requires_grad=True)
        x = scale(leaf(runtime), 2.0)
        product = w * x  # saves x
        other = scale(x, 3.0)  # its lineage keeps the record of x, and the leaf that x came from
        del x
        assert used_units(runtime) == 5
        del product
        assert used_units(runtime) == 3 and float(other.numpy()[0]) == 6.0


def test_no_tensor_is_saved_for_a_gradient_that_nobody_wants():
    with small_runtime() as runtime:
        x = leaf(runtime)
        w = leaf(runtime, requires_grad=True)
        y = tanh(exp(x))  # x needs no gradient
        assert used_units(runtime) == 3
        product = w * y  # saves y for w's gradient; w is not saved, since y wants none
        del y
        assert used_units(runtime) == 4
        with minidl.no_grad():
            z = tanh(exp(w))
        assert used_units(runtime) == 5 and not z.requires_grad
        del product
        assert used_units(runtime) == 3


def test_forward_without_backward_frees_everything_with_the_loss():
    with no_collector(), small_runtime() as runtime:
        training = Training(runtime, "branching", "momentum")
        before, records = used_units(runtime), alive()
        x = runtime.tensor(np.ones(training.shape, np.float32))
        loss = training.model(x).sum()
        del x
        assert used_units(runtime) > 2 * before
        assert alive()["Call"] >= 50
        del loss
        assert used_units(runtime) == before
        # The running statistics were written, and are still there; the calls that read them are gone.
        assert alive() == records


@pytest.mark.default(network=["mlp", "resnet"])
@pytest.mark.parametrize("policy", ["passive", "recompute"])
@pytest.mark.parametrize("network", ["mlp", "vgg", "resnet", "branching"])
def test_training_leaves_nothing_for_the_cycle_collector(network, policy):
    with no_collector(), small_runtime(units=2100, policy=policy) as runtime:
        calls = alive()["Call"]  # that something else in this process still holds
        training = Training(runtime, network, "momentum")
        counts = []
        for _ in range(3):
            training.iterate()
            counts.append(alive())
        # From the second iteration on the gradients are there at the start too.
        assert counts[1] == counts[2] and counts[2]["Call"] == calls
        del training
        assert used_units(runtime) == 0 == runtime.stats().host_used_bytes


def test_what_was_dropped_and_never_wanted_again_leaves_no_trace():
    with small_runtime(units=1500, policy="recompute") as runtime:
        training = Training(runtime, "vgg", "momentum")
        for _ in range(2):
            x = runtime.tensor(np.ones(training.shape, np.float32))
            loss = training.model(x)
            del x
            assert runtime.memory.state.missing()  # relu outputs, saved by their own calls
            del loss
            assert not runtime.memory.state.dropped


def test_a_dry_run_frees_graphs_that_are_never_differentiated():
    with small_runtime() as runtime:
        w = leaf(runtime, requires_grad=True)

        def forward(times: int) -> None:
            for _ in range(times):
                tanh(exp(w))  # both saved by their own calls

        assert runtime.dry_run(lambda: forward(1)).unmanaged_peak_bytes == 3 * UNIT
        assert runtime.dry_run(lambda: forward(10)).unmanaged_peak_bytes == 3 * UNIT


def test_ten_thousand_chained_calls_run_forward_and_backward_and_are_released():
    length = 10_000
    with no_collector(), small_runtime(units=3 * length) as runtime:
        records = alive()
        w = leaf(runtime, requires_grad=True)
        y = w
        for _ in range(length):
            y = relu(y)
        loss = y.sum()
        assert used_units(runtime) == length + 2  # every relu saves its output
        loss.backward()
        assert w.grad is not None and w.grad.numpy().tolist() == [1.0] * 64
        del y
        assert used_units(runtime) == 3
        del loss
        y = w
        for _ in range(length):
            y = tanh(y)
        assert alive()["Call"] == length + records["Call"]
        del y  # without backward: the records go one after the other, and with each what it saved
        assert used_units(runtime) == 2
        del w
        assert alive() == records


def test_replaying_ten_thousand_chained_calls_needs_no_recursion():
    length = 10_000
    with small_runtime() as runtime:
        x = leaf(runtime)
        y = x
        with minidl.no_grad():
            for _ in range(length):
                y = y + 1.0
        drop(runtime, y)
        with launches(runtime) as names:
            assert float(y.numpy()[0]) == length + 1.0
        assert len(names) == length
        assert runtime.stats().peak_bytes <= 4 * UNIT


def test_a_hundred_thousand_chained_calls_without_gradients_use_no_more_memory():
    runtime = minidl.Runtime(device="sim:p100", policy="none", memory_budget=4 * UNIT)
    with runtime, minidl.no_grad():
        y = runtime.tensor(None, shape=(64,))
        for _ in range(100_000):
            y = relu(y)
        assert used_units(runtime) == 2  # the input, and the last value; only records in between
        assert runtime.stats().peak_bytes == 3 * UNIT
        del y
        assert used_units(runtime) == 0


# Bytes that lineage cannot lead to any more -------------------------------------------------------------------------
def test_a_value_from_overwritten_bytes_is_kept_for_what_was_dropped_and_freed_with_its_record():
    with small_runtime() as runtime:
        w = leaf(runtime, 2.0)
        c = leaf(runtime, 1.0)
        with runtime.iteration():
            middle = scale(w, 3.0)  # 6, from the old w
            late = scale(middle, 10.0)  # 60
            unrelated = scale(c, 5.0)
            drop(runtime, late)
            drop(runtime, unrelated)
            add_(w, c)  # w is 3 now: middle cannot be made again
            del middle
            assert used_units(runtime) == 3  # w, c, middle: late has to start from it
            assert float(late.numpy()[0]) == 60.0
            assert used_units(runtime) == 3  # w, c, late: nothing that is dropped has to start from middle any more
            del late
            assert used_units(runtime) == 2
            assert float(unrelated.numpy()[0]) == 5.0


def test_a_failed_iteration_leaks_nothing():
    with no_collector(), small_runtime(units=1500, policy="none") as runtime:
        training = Training(runtime, "vgg", "momentum")
        before, records = used_units(runtime), alive()
        with pytest.raises(OutOfMemory):
            training.iterate()
        assert used_units(runtime) == before
        assert alive() == records


def test_no_grad_sums_of_many_tensors_hold_only_what_is_named():
    with small_runtime() as runtime:
        total = leaf(runtime, 0.0)
        for i in range(100):
            total = add(total, scale(leaf(runtime, float(i)), 1.0))
        # Every input is a leaf that the sum's lineage may need: 100 inputs, the first total, and the sum.
        assert used_units(runtime) == 102
        with runtime.iteration():
            pass
        assert used_units(runtime) == 1 and float(total.numpy()[0]) == 4950.0


@pytest.mark.parametrize("device", ["cpu:virtual", "cpu:threads"])
def test_the_cycle_collector_may_free_tensors_in_the_middle_of_the_arenas_work(device):
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(3)  # a collection at almost every allocation of Python's, in whatever thread it happens
    sys.setswitchinterval(1e-4)
    try:
        with minidl.Runtime(device, memory_budget=1 << 22, host_memory=1 << 16) as runtime:
            for _ in range(300):
                product = runtime.tensor(np.ones((64, 64), np.float32)) @ runtime.tensor(np.ones((64, 64), np.float32))
                cycle = [product]
                cycle.append(cycle)
                del cycle, product
            gc.collect()
            runtime.memory.free_queued()
            runtime.check()
            assert runtime.memory.arena.used_bytes == 0
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)


def test_a_runtime_may_be_used_in_another_thread_than_the_one_that_made_it():
    runtime = minidl.Runtime("cpu:virtual", memory_budget=1 << 22, host_memory=1 << 16)
    left: list[int] = []

    def train() -> None:
        with runtime:
            for _ in range(3):
                product = runtime.tensor(np.ones((64, 64), np.float32)) @ runtime.tensor(np.ones((64, 64), np.float32))
                del product
            left.append(runtime.memory.arena.used_bytes)

    worker = threading.Thread(target=train, daemon=True)
    worker.start()
    worker.join(30)
    assert left == [0]  # and not a worker that waits for ever


KEPT_TO_THE_END = """
import json  # before minidl, so its names go last
import minidl.memory.freeing
json.modules = json, minidl.memory.freeing
minidl.Runtime("cpu:virtual", policy="passive", memory_budget="1MiB").__enter__()
json.kept = minidl.ones(64) * 2.0
"""


def test_tensors_that_outlive_the_modules_at_the_end_of_python_raise_nothing():
    ended = subprocess.run([sys.executable, "-c", KEPT_TO_THE_END], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
