"""A trace that is run again is the program that it was taken from: byte for byte, and in time."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import strangers

from minidl import Runtime
from minidl.device import profiles
from minidl.device.clock import COMPUTE
from minidl.errors import UserError
from minidl.lab import cell
from minidl.lab.functional import functional
from minidl.lab.inferred import completed, live_bytes
from minidl.lab.traced import TracedDevice, TracedProgram, check
from minidl.lab.training_step import trace_of, training_step
from minidl.meta import Algorithm
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.plan.trace_format import trace_from_json, trace_to_json

NAME, BATCH = "resnet20", 128


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(NAME, BATCH)


def steps_of(runtime, step, count):
    """Seconds, stalls and all bytes of some iterations."""
    found, before = [], runtime.stats()
    for _ in range(count):
        with runtime.iteration():
            step()
        now = runtime.stats()
        grown = now.since(before)
        before = now
        found.append((grown.seconds, grown.stall_seconds, grown.recompute_seconds, grown.swapped_out_bytes,
                      grown.swapped_in_bytes, grown.recomputed_bytes, grown.moved_bytes, now.peak_bytes,
                      now.host_peak_bytes))
    runtime.check()
    return found


@pytest.mark.parametrize(("policy", "share", "count"), [
    ("passive", 0.6, 4), ("dtr-swap", 0.5, 4), ("capuchin", 0.6, 5),
    pytest.param("lru", 0.6, 3, marks=pytest.mark.slow),
    pytest.param("auto", 0.6, 5, marks=pytest.mark.slow), pytest.param("recompute", 0.6, 3, marks=pytest.mark.slow),
])
def test_a_trace_run_again_is_the_model_that_it_was_taken_from(trace, policy, share, count):
    """The first iteration begins when the model has been made, which is no part of the trace."""
    again = completed(trace_from_json(trace_to_json(trace)))
    budget = int(share * cell.unmanaged(again, cell.Machine())[1])
    with Runtime(device="sim:p100", policy=policy, memory_budget=budget) as runtime:
        model = steps_of(runtime, training_step(NAME, BATCH), count)
    with Runtime(device=TracedDevice(profiles.get("p100"), again), policy=policy, memory_budget=budget) as runtime:
        traced = steps_of(runtime, TracedProgram(again).step, count)
    assert [step[3:] for step in traced] == [step[3:] for step in model]
    assert sum(step[3] + step[5] for step in model) > 0  # memory was short
    for ours, theirs in zip(traced[1:], model[1:], strict=True):
        assert ours[:3] == pytest.approx(theirs[:3], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("policy", "share", "longer", "copies"), [
    ("none", 1.2, 0.048, None), ("capuchin", 0.7, 0.007, 0.0)])
def test_a_network_in_little_memory_updates_in_parts_and_its_trace_does_not(policy, share, longer, copies):
    """The numbers of docs/lab.md."""
    made = trace_of("lenet", 64)
    budget = int(share * cell.unmanaged(made, cell.Machine())[1])
    with Runtime(device="sim:p100", policy=policy, memory_budget=budget, precision="fp32") as runtime:
        model = steps_of(runtime, training_step("lenet", 64), 6)[-1]
    with Runtime(device=TracedDevice(profiles.get("p100"), made), policy=policy, memory_budget=budget) as runtime:
        traced = steps_of(runtime, TracedProgram(made).step, 6)[-1]
    assert model[0] / traced[0] - 1 == pytest.approx(longer, abs=5e-4)
    if copies is not None:
        assert sum(model[3:5]) / sum(traced[3:5]) - 1 == pytest.approx(copies, abs=5e-4)


def test_a_trace_of_version_1_is_run_with_what_its_calls_tell(trace):
    """Close to the truth: nearly the same is kept for gradients, and nearly the same time is taken."""
    document = json.loads(trace_to_json(trace))
    document["version"] = 1
    del document["windows"]
    for tensor in document["tensors"]:
        del tensor["idle"]
    for call in document["calls"]:
        for key in ("saves", "takes", "leaves", "long_lived"):
            del call[key]
    old = completed(trace_from_json(json.dumps(document)))
    assert sum(map(len, (c.saves for c in old.calls))) > 0
    for policy in ("passive", "dtr-swap"):
        rows = [cell.run("r", each, cell.Machine(), policy, 0.6) for each in (trace, old)]
        assert rows[1].settled_s == pytest.approx(rows[0].settled_s, rel=0.1)


def test_noise_changes_times_by_chance_and_the_same_seed_gives_the_same(trace):
    rows = [cell.run("r", trace, replace(cell.Machine(), noise=noise, seed=seed), "passive", 0.6, steps=2).settled_s
            for noise, seed in ((0.0, 0), (0.25, 1), (0.25, 1), (0.25, 2))]
    assert rows[1] == rows[2] and len(set(rows)) == 3


def test_a_row_has_the_seconds_that_planning_took(trace):
    assert cell.run("r", trace, cell.Machine(), "capuchin", 0.6, steps=4).planning_s > 0.0
    assert cell.run("r", trace, cell.Machine(), "passive", 0.6, steps=2).planning_s == 0.0


def test_a_slower_link_and_no_host_are_another_machine(trace):
    usual = cell.run("r", trace, cell.Machine(), "passive", 0.6, steps=2)
    slow = cell.run("r", trace, cell.Machine(link=(1e9, 2e9)), "passive", 0.6, steps=2)
    assert slow.settled_s > usual.settled_s and slow.out_bytes == usual.out_bytes
    for link in ((1e9, 1e11), (1e11, 1e9)):  # each way counts
        fast = replace(cell.Machine(), link=(1e11, 1e11))
        found = [cell.run("r", trace, each, "passive", 0.6, steps=2) for each in (fast, replace(fast, link=link))]
        assert found[1].settled_s > found[0].settled_s
    assert cell.run("r", trace, cell.Machine(host_bytes=0), "dtr-swap", 0.7, steps=2).out_bytes == 0
    assert cell.run("r", trace, cell.Machine(), "none", 0.6, steps=2).status.startswith("no room: ")
    assert cell.run("r", trace, cell.Machine(), "vdnn-all", 0.02, steps=4).status.startswith(("cannot: ", "no room: "))


def small(*calls: TraceCall, lasting: tuple[int, ...] = ()) -> Trace:
    named = {i for call in calls for i in (*call.inputs, *call.outputs, *call.frees)}
    return Trace(calls, {i: TraceTensor(i, 1024, i in lasting) for i in sorted(named)})


def call(inputs, outputs, *, frees=(), writes=(), **more) -> TraceCall:
    return TraceCall("op", tuple(inputs), tuple(outputs), 1e-3, (Algorithm("op", 1e-3),), tuple(frees),
                     writes=tuple(writes), **more)


@pytest.mark.parametrize("policy", ["passive", "auto"])
def test_where_nothing_may_be_recomputed_values_still_donate_their_bytes(trace, policy):
    """The laboratory makes no result a leaf there, because no replay starts from one. A leaf donates no bytes."""
    row = cell.run(NAME, trace, cell.Machine(recomputes=False), policy, 1.0)
    assert (row.status, row.out_bytes, row.settled_s) == ("ok", 0, pytest.approx(row.unmanaged_s, rel=1e-3))
    row = cell.run(NAME, trace, cell.Machine(recomputes=False), policy, 0.8)
    assert row.out_bytes > 0 == row.recompute_seconds
    if policy == "auto":
        assert row.settled_s == pytest.approx(row.predicted_s, rel=0.02)


def test_a_write_in_place_is_a_result_that_takes_the_place_over():
    """1 is made of 0, written by a call that keeps it for its gradient, and read; -1 lasts, and stays what it is."""
    trace = small(call([-1], [0]), call([0], [1], saves=(0,)), call([1], [], writes=[1], saves=(1,)),
                  call([1], [2], frees=[1]), call([-1, 2], [], writes=[-1], frees=[0, 2]), lasting=(-1,))
    made = functional(trace)
    assert made.calls[:2] == trace.calls[:2]
    write, reading, update = made.calls[2:]
    assert (write.inputs, write.outputs, write.writes, write.frees, write.saves) == ((1,), (3,), (), (1,), (3,))
    assert write.donated == write.may_donate == ((3, 1),) and write.replayable
    assert (reading.inputs, reading.frees) == ((3,), (3,))
    assert update.writes == (-1,) and not update.replayable
    assert live_bytes(made) == live_bytes(trace) and made.tensors[3].nbytes == 1024
    assert cell.unmanaged(made, cell.Machine()) == (pytest.approx(5e-3, rel=0.1), 4 * 1024)


def test_what_was_drawn_by_lot_stays_written_in_place():
    """1 takes the place of 0, which is room; what draws it cannot be carried out twice, and nor can what writes it."""
    trace = small(call([], [0]), call([0], [], writes=[0], replayable=False), call([0], [], writes=[0]), call([0], []))
    room, draw, scale, reading = functional(trace).calls
    assert (draw.outputs, draw.writes, draw.replayable) == ((1,), (), False)
    assert (scale.outputs, scale.writes, scale.inputs, scale.replayable) == ((), (1,), (1,), False)
    assert room == trace.calls[0] and reading.inputs == (1,)


def test_a_call_may_write_and_make_outputs_at_once_and_leaves_may_appear_on_the_way():
    """0 is left by one iteration to the next; 2 is written while 3 is made; 3 becomes a leaf."""
    trace = small(call([-1], [1]), call([0, 1], [2], frees=[0]), call([2, 1], [3], writes=[2], frees=[1]),
                  call([3, 2], [4], leaves=(2,), frees=[2, 3]), lasting=(-1,))
    with Runtime(device=TracedDevice(profiles.get("p100"), trace), policy="dtr-swap", memory_budget=4096) as runtime:
        program = TracedProgram(trace)
        for _ in range(3):
            with runtime.iteration():
                program.step()
            assert set(program.handles) == {-1, 4}
        runtime.check()
        assert runtime.stats().calls == 12


@pytest.mark.parametrize(("wrong", "message"), [
    (small(call([-1], [0], frees=[0]), call([0], [1])), "call 1 (op) reads tensor 0, which was freed before"),
    (small(call([-1], [0], writes=[0])), "call 0 (op) writes tensor 0, which is none of its inputs"),
    (Trace((), {}), "the trace has no calls"),
    (small(call([], [])), "the trace has 1 calls, and no tensor of theirs takes memory"),
])
def test_what_no_program_can_have_is_refused(wrong, message):
    with pytest.raises(UserError) as error:
        check(wrong)
    assert str(error.value) == message


def test_the_live_bytes_of_a_trace_count_what_took_over_a_place_once():
    trace = small(call([-1], [0]), call([0], [1], frees=[0], donated=((1, 0),)), call([1], [], frees=[1]),
                  lasting=(-1,))
    assert live_bytes(trace) == [2048, 2048, 2048]


def test_every_second_beyond_the_unmanaged_step_has_a_column():
    """On demand, with convolutions that have slower algorithms; what is left is little: waits for launches."""
    made = completed(strangers.vgg(1))
    for policy, host_bytes, placement in (("passive", None, "best-fit"), ("recompute", 0, "best-fit"),
                                          ("passive", None, "none")):
        row = cell.run("vgg", made, cell.Machine(host_bytes=host_bytes, placement=placement), policy, 0.6, steps=3)
        slid = row.slid_seconds
        assert row.slower_seconds > 0.05 * row.unmanaged_s and (slid > 0.01 * row.unmanaged_s) == (placement != "none")
        assert row.settled_s == pytest.approx(row.unmanaged_s + row.stall_seconds + row.recompute_seconds + slid
                                              + row.slower_seconds, rel=1e-3)


def test_what_no_column_has_is_the_wait_for_launches():
    """After each wait of the host for a copy the device is idle until the next call is launched."""
    made = trace_of("lenet", 64)
    unmanaged, peak = cell.unmanaged(made, cell.Machine())
    device = TracedDevice(profiles.get("p100"), made)
    with Runtime(device=device, policy="passive", memory_budget=int(0.7 * peak)) as runtime:
        program, before, busy = TracedProgram(made), runtime.stats(), 0.0
        for _ in range(3):
            before, busy = runtime.stats(), device.clock.busy[COMPUTE]
            with runtime.iteration():
                program.step()
        last = runtime.stats().since(before)
        idle = last.seconds - (device.clock.busy[COMPUTE] - busy) - last.stall_seconds
    columns = last.stall_seconds + last.recompute_seconds + last.slid_seconds + last.slower_seconds
    assert last.seconds - unmanaged - columns == pytest.approx(idle)
    assert 10 * device.profile.launch_overhead_s < idle < 15 * device.profile.launch_overhead_s


@pytest.mark.parametrize("number", [int, np.int64])
def test_a_budget_is_an_int_of_bytes_or_a_share(trace, number):
    _, peak = cell.unmanaged(trace, cell.Machine())
    for budget in (number(0.8 * peak), 0.8):
        row = cell.run("r", trace, cell.Machine(), "passive", budget, steps=1)
        assert row.budget_bytes == int(0.8 * peak)


@pytest.mark.parametrize("budget", [72576358.0, math.inf, math.nan, 0.0, -0.5, 1e-30, 0, -3])
def test_a_budget_that_is_neither_is_refused(trace, budget):
    with pytest.raises(UserError, match="a share of at most 10000, or an int of bytes, and give at least 1 byte, not"):
        cell.run("r", trace, cell.Machine(), "passive", budget)
