"""Measured durations: what a trace says on the wall clock, how medians are taken, and that kernels never meet.

No test looks at how fast anything is: kernels that take a known time are slept, and only lower bounds are compared.
"""

import gc
import importlib
import pkgutil
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cells import NBYTES, PLAIN, cell, fill, threaded, until
from networks import Training
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

import minidl
from minidl import device as devices
from minidl.device import profiles
from minidl.device.clock import COMPUTE
from minidl.device.cpu import link, numerics
from minidl.meta import Algorithm
from minidl.ops.elementwise import exp, neg
from minidl.plan.policy import OnDemand
from minidl.plan.trace import Trace, TraceCall, TraceTensor, scaled, typical

NAP_S = 5e-3


@pytest.fixture
def slow_neg(monkeypatch):
    """Every ``neg`` sleeps, while nothing else of it changes."""
    kernel = numerics.KERNELS["neg"]
    monkeypatch.setitem(numerics.KERNELS, "neg", lambda *arrays: time.sleep(NAP_S) or kernel(*arrays))


def seconds_of(trace, op):
    return [call.seconds for call in trace.calls if call.op == op]


# What the device tells ------------------------------------------------------------------------------------------
def test_a_virtual_device_tells_the_modelled_seconds_at_once():
    for device in (devices.create("sim:p100"), devices.create("cpu:virtual")):
        device.attach(NBYTES, 0)
        told = []
        device.launch("fill_", Algorithm("", 0.25), (), (cell(0),), {"value": 1.0}, 0, told.append)
        assert told == [0.25]
    dry = device.dry_twin()
    assert dry.launch("fill_", PLAIN, (), (cell(0),), {"value": 1.0}, 0, told.append) == 0 and told == [0.25]


def test_threads_tell_what_the_work_took_in_program_order_without_waits(slow_neg):
    device = threaded()
    device.attach(2 * NBYTES, 0)
    told, opened = [], threading.Event()
    device.streams.delay = lambda stream: opened.wait(60) and None  # before the work: not part of it
    fill(device, 0, 1.0)
    device.launch("neg", PLAIN, (cell(1),), (cell(0),), {}, 0, lambda s: told.append(("neg", s)))
    device.launch("fill_", PLAIN, (), (cell(0),), {"value": 1.0}, 0, lambda s: told.append(("fill", s)))
    before = device.now()
    time.sleep(10 * NAP_S)
    assert told == []
    opened.set()
    device.settle()
    assert [name for name, _ in told] == ["neg", "fill"]
    assert told[0][1] >= NAP_S
    assert sum(seconds for _, seconds in told) < device.now() - before - 9 * NAP_S
    device.close()


# Traces ------------------------------------------------------------------------------------------------------------
def test_a_trace_on_threads_has_measured_durations_and_timestamps(slow_neg):
    with minidl.Runtime("cpu", memory_budget="1MiB", policy="none") as runtime, runtime.iteration():
        x = runtime.tensor(np.ones(64, np.float32))
        y = neg(x)
        z = exp(neg(y))
        trace = runtime.trace()
        assert all(seconds >= NAP_S for seconds in seconds_of(trace, "neg"))
        assert seconds_of(trace, "exp")[0] > 0
        assert trace.seconds > z.storage.timestamp == trace.accesses[-1].time_s >= 2 * NAP_S


def test_reading_a_value_keeps_durations_and_calls_in_step(slow_neg):
    with minidl.Runtime("cpu", memory_budget="1MiB", policy="none") as runtime, runtime.iteration():
        x = runtime.tensor(np.ones(64, np.float32))
        for _ in range(3):
            exp(x).numpy()
            y = neg(x)
        trace = runtime.trace()
        del y
        assert [call.op for call in trace.calls] == ["upload", *["exp", "read", "neg"] * 3]
        assert min(seconds_of(trace, "neg")) >= NAP_S
        nominal = runtime.tracker.log[2][1].seconds
        assert seconds_of(trace, "read") == [nominal] * 3


def test_a_replay_counts_as_recomputation_and_leaves_the_trace_alone(slow_neg):
    def iteration(runtime, *, dropping):
        with runtime.iteration():
            x = runtime.tensor(np.ones(64, np.float32))
            y = neg(x)
            if dropping:
                runtime.memory.evicting.drop(y.storage)
            exp(y)
            return runtime.trace()

    with minidl.Runtime("cpu", memory_budget="1MiB", policy="none") as runtime:
        plain = iteration(runtime, dropping=False)
        assert runtime.stats().recompute_seconds == 0.0
        dropped = iteration(runtime, dropping=True)
        assert NAP_S <= runtime.stats().recompute_seconds <= runtime.stats().seconds
    assert [c.op for c in dropped.calls] == [c.op for c in plain.calls] == ["upload", "neg", "exp"]
    assert seconds_of(dropped, "exp")[0] > 0


def test_alternatives_keep_their_modelled_ratio_to_the_algorithm_that_ran():
    with minidl.Runtime("cpu", memory_budget="4MiB", policy="none") as runtime:
        training = Training(runtime, "vgg", "momentum")
        training.iterate()
        with runtime.iteration():
            training.step()
            trace = runtime.trace()
            log = list(runtime.tracker.log)
    several = 0
    for call, (signature, ran, _, _) in zip(trace.calls, log, strict=True):
        factor = call.seconds / ran.seconds
        for measured, modelled in zip(call.algorithms, signature.algorithms, strict=True):
            assert measured == replace(modelled, seconds=pytest.approx(modelled.seconds * factor))
        several += len(call.algorithms) > 1
    assert several > 5


# Medians ---------------------------------------------------------------------------------------------------------
FAST, SMALL = Algorithm("fast", 1.0, 256), Algorithm("small", 4.0, 0)  # modelled seconds


def one_call(seconds, algorithms, frees=()):
    call = TraceCall("conv2d", (0,), (1,), seconds, algorithms, frees=frees)
    return Trace((call,), {i: TraceTensor(i, 256, False) for i in (0, 1)})


def test_the_typical_trace_has_the_median_of_each_call_and_the_last_ones_frees():
    # The machine was 2, 7 and 3 times as slow as modelled.
    traces = [one_call(factor * 1.0, scaled((FAST, SMALL), factor), frees)
              for factor, frees in ((2.0, ()), (7.0, ()), (3.0, (0,)))]
    (call,) = typical(traces).calls
    assert (call.seconds, [a.seconds for a in call.algorithms]) == (3.0, [3.0, 12.0])
    assert call.frees == (0,)


def test_an_iteration_that_ran_another_algorithm_counts_by_its_speed():
    # 2, 7 and 3 times again, but the last iteration had no room for the workspace: 3 x 4 seconds.
    table = (FAST, SMALL)
    traces = [one_call(2.0, scaled(table, 2.0)), one_call(7.0, scaled(table, 7.0)), one_call(12.0, scaled(table, 3.0))]
    (call,) = typical(traces).calls
    assert (call.seconds, [a.seconds for a in call.algorithms]) == (12.0, [3.0, 12.0])
    (call,) = typical([traces[2], traces[1], traces[0]]).calls
    assert (call.seconds, [a.seconds for a in call.algorithms]) == (3.0, [3.0, 12.0])


def test_modelled_traces_are_not_touched():
    trace = one_call(1.0, (FAST, SMALL))
    assert typical([trace]) is trace
    assert scaled(trace.calls[0].algorithms, 1.0) is trace.calls[0].algorithms


class Noting(OnDemand):
    """A policy that keeps the traces it was asked to plan for."""

    name, plans = "noting", True

    def __init__(self):
        self.planned = []

    def plan(self, trace, costs, limits):
        self.planned.append((trace, costs))
        return minidl.plan.plan.NO_PLAN

    def victims(self, resident, nbytes):
        return []

    def feedback(self, proposal, observed):
        return proposal


@pytest.mark.parametrize(("device", "iterations"), [("cpu:virtual", 2), ("cpu", 4)])
def test_a_sequence_is_planned_after_one_iteration_of_warming_up_and_those_that_are_measured(device, iterations):
    policy = Noting()
    with minidl.Runtime(device, memory_budget="4MiB", policy=policy) as runtime:
        training = Training(runtime, "mlp", "momentum")
        counts = []
        for _ in range(6):
            training.iterate()
            counts.append(len(policy.planned))
    assert counts == [0] * (iterations - 1) + [1] * (7 - iterations)


def test_what_is_planned_on_is_the_median_of_three_iterations(monkeypatch):
    naps = iter([0.0, 2 * NAP_S, 20 * NAP_S, 5 * NAP_S, 0.0, 0.0])
    kernel = numerics.KERNELS["neg"]
    monkeypatch.setitem(numerics.KERNELS, "neg", lambda *arrays: time.sleep(next(naps)) or kernel(*arrays))
    policy = Noting()
    with minidl.Runtime("cpu", memory_budget="1MiB", policy=policy) as runtime:
        for _ in range(4):
            with runtime.iteration():
                neg(runtime.tensor(np.ones(64, np.float32)))
    ((trace, _),) = policy.planned
    assert 5 * NAP_S <= seconds_of(trace, "neg")[0] < 20 * NAP_S


def test_a_plan_is_judged_when_all_of_its_iteration_has_happened(slow_neg):
    """The host is ahead when an iteration ends: what it has not waited for would be missing."""
    seen = []

    class Judging(Noting):
        def plan(self, trace, costs, limits):
            super().plan(trace, costs, limits)
            first = trace.accesses[0]
            plan = minidl.plan.plan.Plan({(first.tensor_id, 1): minidl.plan.plan.Action.SWAP_OUT})
            return minidl.plan.plan.Proposal(plan)

        def feedback(self, proposal, observed):
            seen.append(observed.seconds)
            return proposal

    with minidl.Runtime("cpu", memory_budget="1MiB", host_memory="1MiB", policy=Judging()) as runtime:
        for _ in range(7):
            with runtime.iteration():
                y = runtime.tensor(np.ones(64, np.float32))
                for _ in range(4):
                    y = neg(y)
    assert len(seen) == 3 and min(seen[1:]) >= 4 * NAP_S  # the first may have begun before the host knew its time


# The link --------------------------------------------------------------------------------------------------------
def test_the_link_of_the_cpu_is_measured_and_told_to_the_policy():
    policy = Noting()
    nominal = profiles.get("cpu")
    with minidl.Runtime("cpu", memory_budget="1MiB", policy=policy) as runtime:
        profile = runtime.device.profile
        for _ in range(4):
            with runtime.iteration():
                runtime.tensor(np.ones(64, np.float32))
    ((_, costs),) = policy.planned
    assert costs.out_seconds_per_byte == 1 / profile.link_out_bandwidth != 1 / nominal.link_out_bandwidth
    assert costs.in_seconds_per_byte == 1 / profile.link_in_bandwidth != 1 / nominal.link_in_bandwidth
    assert costs.latency_seconds == profile.link_latency_s > 0
    assert replace(profile, link_out_bandwidth=5e9, link_in_bandwidth=5e9, link_latency_s=10e-6) == nominal
    assert devices.create("cpu").profile == profile  # once in a process
    assert devices.create("cpu:virtual").profile == nominal


def test_a_measured_link_is_bytes_over_median_seconds(monkeypatch):
    copies = iter([1e-3, 3e-3, 2e-3, 8e-3, 40e-3, 4e-3])  # three out, three in
    monkeypatch.setattr(link, "_seconds", lambda work: next(copies) if isinstance(work, partial) else 7e-6)
    measured = link.measure(nbytes=1 << 10, repeats=3)
    assert measured.out_bandwidth == pytest.approx(1024 / 2e-3)
    assert measured.in_bandwidth == pytest.approx(1024 / 8e-3)
    assert measured.latency_s == 7e-6


def test_a_file_takes_the_place_of_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "_measured", lambda: pytest.fail("it was measured"))
    path = tmp_path / "mine.json"
    mine = replace(profiles.get("cpu"), name="mine", link_out_bandwidth=3e9)
    path.write_text(profiles.to_json(mine))
    device = devices.create(f"cpu:{path}")
    assert device.wall_clock and device.profile == mine


# One kernel at a time --------------------------------------------------------------------------------------------
def test_kernels_of_two_runtimes_never_run_at_once_and_copies_run_beside_them(monkeypatch):
    running, most, copied = [0], [0], threading.Event()

    def kernel(*arrays):
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(1e-3)
        running[0] -= 1

    monkeypatch.setitem(numerics.KERNELS, "neg", kernel)
    monkeypatch.setitem(numerics.KERNELS, "exp", lambda *arrays: copied.wait(60) or pytest.fail("the copy was held up"))
    pair = [threaded(), threaded()]
    for device in pair:
        device.attach(2 * NBYTES, NBYTES)
    for _ in range(20):
        for device in pair:
            device.launch("neg", PLAIN, (cell(1),), (cell(0),), {}, 0)
    for device in pair:
        device.settle()
    assert most == [1]
    pair[0].launch("exp", PLAIN, (cell(1),), (cell(0),), {}, 0)  # ends when the other's copy has ended
    pair[1].synchronize(1, pair[1].copy_out(((0, NBYTES),), 0, NBYTES))
    copied.set()
    pair[0].settle()
    for device in pair:
        device.close()


def test_a_kernel_that_fails_lets_the_next_one_run():
    device = threaded()
    device.attach(2 * NBYTES, 0)
    device.launch("neg", PLAIN, (cell(1),), (cell(0, shape=(3,)),), {}, 0)
    with pytest.raises(ValueError):
        device.confirm()
    other = threaded()
    other.attach(NBYTES, 0)
    other.synchronize(COMPUTE, fill(other, 0, 1.0))
    until(lambda: other.streams.finished[COMPUTE] == 1)
    for made in (device, other):
        made.close()


def test_no_compiled_kernel_holds_the_interpreter_while_it_runs():
    """Else copies, and the host, would stand still beside it: their threads are Python too."""
    for module in pkgutil.iter_modules(minidl.kernels.cpu.__path__):
        importlib.import_module(f"minidl.kernels.cpu.{module.name}")
    # Not isinstance: it asks the objects of others.
    kernels = [d for d in gc.get_objects() if issubclass(type(d), Dispatcher)
               and d.py_func.__module__.startswith("minidl.kernels.cpu")]  # formulas become part of a kernel
    # What Numba makes of an overload, when one is compiled, becomes part of a kernel too; it is not kept on disk.
    kernels = [d for d in kernels if not isinstance(d._cache, NullCache)]
    assert len(kernels) > 20
    assert [d.py_func.__qualname__ for d in kernels if not d.targetoptions.get("nogil")] == []
