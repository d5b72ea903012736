"""A trace says what the program asked for: the same on every device, under every policy and budget, in every iteration.

What a device chooses (algorithms and their times) is left out; copies, replays, and inputs that give up their bytes for
want of memory are in no trace.
"""

from dataclasses import replace
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from networks import UNLIMITED, Training

from bench.support.kernel_cases import OPS
from minidl import Runtime, ops, parameter
from minidl.ops.update import fill_
from minidl.plan.trace import Trace, TraceCall
from minidl.policies import POLICIES
from minidl.policies.literature import SOLVERS, SYSTEMS

NETS = ("vgg", "resnet", "branching")
# The first makes the model and has no old gradients to free; the second is seen for the first time, the third again;
# what is planned from these happens in the fourth.
ITERATIONS = 4
UPDATES = {name for name, op in OPS.items() if op.update}



def runtime(**options) -> Runtime:
    return Runtime(**({"device": "cpu:virtual", "memory_budget": UNLIMITED, "host_memory": UNLIMITED,
                      "policy": "none"} | options))


@cache
def traces(network: str, **options) -> tuple[Trace, ...]:
    """Of each iteration of the same training."""
    with runtime(**options) as made:
        training = Training(made, network, "momentum")
        found = []
        for _ in range(ITERATIONS):
            with made.iteration():
                training.step()
                found.append(made.trace())
        stats = made.stats()
    pressed = stats.swapped_out_bytes + stats.recomputed_bytes
    assert (pressed == 0) == (options.get("memory_budget") is None), "pressure is where it should be"
    return tuple(found)


def without_times(call: TraceCall) -> TraceCall:
    return replace(call, seconds=0.0, algorithms=())


def others(trace: Trace) -> list[TraceCall]:
    """The calls that are no updates of parameters."""
    return [call for call in trace.calls if call.op not in UPDATES]


def accesses(trace: Trace) -> list[tuple[int, int, int]]:
    return [(a.tensor_id, a.access_count, a.call) for a in trace.accesses]


@pytest.mark.parametrize("device", ["sim:p100", "sim:h200"])
@pytest.mark.parametrize("network", NETS)
def test_cpu_and_simulator_give_the_same_trace(network, device):
    for on_cpu, simulated in zip(traces(network), traces(network, device=device), strict=True):
        assert [without_times(c) for c in on_cpu.calls] == [without_times(c) for c in simulated.calls]
        assert on_cpu.tensors == simulated.tensors
        assert accesses(on_cpu) == accesses(simulated)


def test_devices_differ_in_algorithms_and_times():
    """Else the tests here would leave out nothing, and compare one device with itself."""
    calls = [[(c.algorithms, c.seconds) for c in traces("vgg", device=device)[1].calls]
             for device in ("cpu", "sim:p100", "sim:h200")]
    assert calls[0] != calls[1] != calls[2] != calls[0]


@pytest.mark.default(network=["resnet"], device=["cpu:virtual"], percent=[0])
@pytest.mark.parametrize("percent", [50, 0])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("none", *SOLVERS, *SYSTEMS)])
@pytest.mark.parametrize(("network", "device"), [*((n, "cpu:virtual") for n in NETS), ("resnet", "sim:p100")])
def test_budget_and_policy_do_not_show_in_the_trace(network, device, policy, percent):
    with runtime(device=device) as made:
        demand = Training(made, network, "momentum").demand()
    budget = max(demand.largest_op_bytes, demand.unmanaged_peak_bytes * percent // 100)
    short = traces(network, device=device, policy=policy, memory_budget=budget)
    for pressed, free in zip(short, traces(network, device=device), strict=True):
        # How many tensors one update takes follows from the budget; what is updated, and all else, does not.
        assert [without_times(c) for c in others(pressed)] == [without_times(c) for c in others(free)]
        assert sorted(a[:2] for a in accesses(pressed)) == sorted(a[:2] for a in accesses(free))
        assert {i: t for i, t in pressed.tensors.items() if i in free.tensors} == free.tensors


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in SYSTEMS.keys() - SOLVERS])
def test_with_room_enough_every_policy_gives_the_same_trace_to_the_last_field(policy):
    for trace, other in zip(traces("branching", device="sim:p100", policy=policy),
                            traces("branching", device="sim:p100"), strict=True):
        assert trace == other


@pytest.mark.parametrize("device", ["cpu", "sim:p100"])
@pytest.mark.parametrize("network", NETS)
def test_every_iteration_after_the_first_is_the_same_to_the_last_id(network, device):
    _, second, *later = traces(network, device=device)
    for trace in later:
        assert [without_times(c) for c in second.calls] == [without_times(c) for c in trace.calls]
        assert second.tensors == trace.tensors
        assert accesses(second) == accesses(trace)


@pytest.mark.parametrize("network", NETS)
def test_the_first_iteration_asks_for_the_same_after_the_model_is_made(network):
    first, second, *_ = traces(network)
    start = next(i for i, call in enumerate(first.calls) if call.op == "upload")
    asked = [replace(without_times(c), frees=()) for c in first.calls[start:]]
    assert asked == [replace(without_times(c), frees=()) for c in second.calls]


@pytest.mark.parametrize("network", NETS)
def test_parameters_buffers_and_optimizer_state_keep_their_ids(network):
    with runtime() as made:
        training = Training(made, network, "momentum")
        model, states = training.model, [t for s in training.optimizer._states.values() for t in s]
        kept = [*model.parameters(), *(b for _, b in model.named_buffers()), *states]
        ids = {t.tensor_id: t.nbytes for t in kept}
        assert len(ids) == len(kept)
        for _ in range(ITERATIONS):
            with made.iteration():
                training.step()
                trace = made.trace()
            assert {i: t.nbytes for i, t in trace.tensors.items() if t.persistent} == ids
            assert {t.tensor_id: t.nbytes for t in kept} == ids


def test_a_gradient_that_is_added_to_over_iterations_keeps_its_id():
    with runtime() as made:
        weight = parameter((64,))
        fill_(weight, 1.0)
        found = []
        for _ in range(4):
            with made.iteration():
                (made.tensor(np.ones((4, 64), np.float32)) * weight).sum().backward()
                found.append([(c.op, c.inputs, c.outputs) for c in made.trace().calls])
    assert found[1][-1][0] == "add_"
    assert found[1] == found[2] == found[3]


@pytest.mark.parametrize("network", NETS)
def test_accesses_are_counted_from_one_at_production_in_program_order(network):
    for trace in traces(network):
        counts: dict[int, int] = {}
        made = {tensor_id for call in trace.calls for tensor_id in call.outputs}
        position = 0
        for number, call in enumerate(trace.calls):
            here = dict.fromkeys((*call.inputs, *call.outputs))  # a tensor that is used twice by one call counts once
            found = trace.accesses[position:position + len(here)]
            position += len(here)
            assert [(a.tensor_id, a.call) for a in found] == [(tensor_id, number) for tensor_id in here]
            for access in found:
                counts[access.tensor_id] = counts.get(access.tensor_id, 0) + 1
                assert access.access_count == counts[access.tensor_id]
                if access.tensor_id in made:  # whatever is made in this iteration is made before it is used
                    assert (access.access_count == 1) == (access.tensor_id in call.outputs)
        assert position == len(trace.accesses)


def test_the_trace_counts_accesses_as_the_tensors_do():
    with runtime() as made, made.iteration():
        x = made.tensor(np.ones((2, 3), np.float32))
        y = x * x  # one call, one access of x
        z = ops.permute(y, (1, 0)) + ops.permute(x, (1, 0))  # views are no calls; they access their base
        last = {a.tensor_id: a.access_count for a in made.trace().accesses}
        assert [t.access_count for t in (x, y, z)] == [last[t.tensor_id] for t in (x, y, z)] == [3, 2, 1]
        assert [c.op for c in made.trace().calls] == ["upload", "mul", "add"]


@pytest.mark.parametrize("device", ["cpu", "sim:p100"])
def test_the_time_of_an_access_is_the_sum_of_the_calls_before_it(device):
    trace = traces("vgg", device=device)[2]
    starts = list(accumulate((call.seconds for call in trace.calls), initial=0.0))
    assert all(call.seconds > 0 for call in trace.calls)
    assert [a.time_s for a in trace.accesses] == [starts[a.call] for a in trace.accesses]
    assert trace.seconds == starts[-1]


@pytest.mark.parametrize("network", NETS)
def test_what_is_freed_was_made_or_survived_and_is_not_used_again(network):
    for trace in traces(network):
        last_use = {a.tensor_id: a.call for a in trace.accesses}
        frees = [(tensor_id, number) for number, call in enumerate(trace.calls) for tensor_id in call.frees]
        assert len(dict(frees)) == len(frees)
        assert all(last_use.get(tensor_id, -1) <= number and tensor_id >= 0 for tensor_id, number in frees)
        # All that is left are the loss, the input batch's leaves that the step still holds, and the gradients.
        made = {tensor_id for call in trace.calls for tensor_id in call.outputs}
        gradients = {i for call in trace.calls if call.op == "sgd_momentum_"
                     for i in call.inputs[2 * len(call.inputs) // 3:]}
        assert len(made - dict(frees).keys() - gradients) <= 3


def test_a_view_names_its_base_with_all_of_its_bytes():
    with runtime() as made:
        weight = parameter((64,))  # 256 bytes
        fill_(weight, 1.0)
        with made.iteration():
            fill_(weight, 1.0)
        with made.iteration():
            piece = ops.between(weight, 0, 0, 3) * 2.0  # reads 12 of them
            trace = made.trace()
            assert trace.tensors[weight.tensor_id].nbytes == 256
            assert trace.tensors[piece.tensor_id].nbytes == 12


def test_an_expanded_view_takes_no_more_bytes_than_its_base():
    with runtime() as made, made.iteration():
        row = made.tensor(np.ones((1, 8), np.float32))  # 32 bytes
        square = ops.exp(ops.expand(row, (8, 8)))
        trace = made.trace()
        assert trace.tensors[row.tensor_id].nbytes == 32
        assert trace.tensors[square.tensor_id].nbytes == 256


def test_replays_and_copies_are_in_no_trace():
    """x takes all but 2 KiB: exp(x) is dropped for exp(2 x), and made again for the sum."""
    with runtime(policy="recompute", memory_budget=10 * 1024) as made, made.iteration():
        x = made.tensor(np.ones(1024, np.float32))  # 4 KiB
        y = ops.exp(x)  # 4 KiB
        ops.tanh(x).numpy()  # 4 KiB
        y.numpy()
        assert [c.op for c in made.trace().calls] == ["upload", "exp", "tanh", "read", "read"]
        assert made.stats().recomputed_bytes == 4096


def test_the_trace_tells_where_the_lineage_of_each_gradient_ends():
    """Of a parameter's gradient: when it reaches the parameter, before the update reads it."""
    trace = traces("vgg")[-1]
    cut = {tensor_id: position for position, call in enumerate(trace.calls) for tensor_id in call.leaves}
    made = {tensor_id: position for position, call in enumerate(trace.calls) for tensor_id in call.outputs}
    updates = [(n, call) for n, call in enumerate(trace.calls) if call.op in UPDATES]
    read = {tensor_id: n for n, call in updates for tensor_id in call.inputs if tensor_id >= 0}
    assert read and read.keys() <= cut.keys()
    assert all(made[tensor_id] < cut[tensor_id] <= read[tensor_id] for tensor_id in read)
