"""A call that fails ends alone: whatever else a program has made stays as it is, whatever the budget."""

import gc
from contextlib import suppress

import numpy as np
import pytest

from minidl import Runtime, UserError, parameter
from minidl.dispatch import donate
from minidl.kernels.cpu import KERNELS
from minidl.memory.tracker import SURVIVOR_STEP
from minidl.ops import embedding_, relu, tanh
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD

ROOM = (("cpu:virtual", 1 << 20, "none"), ("cpu", 1 << 20, "none"), ("cpu:virtual", 1536, "passive"),
        ("cpu", 1536, "passive"), ("cpu:virtual", 1536, "recompute"), ("cpu:virtual", 1536, "dtr-swap"))


@pytest.fixture(params=ROOM, ids=lambda room: f"{room[0]}-{room[1]}-{room[2]}")
def runtime(request):
    device, budget, policy = request.param
    with Runtime(device, memory_budget=budget, policy=policy, poisoned=True) as made:
        yield made
        made.check()


class Network:
    """Two layers whose values are known: weights of 0.5, inputs of 1."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.first, self.second = parameter((4, 4)), parameter((4, 3))
        for weight in (self.first, self.second):
            weight.fill_(0.5)
        self.optimizer = SGD([self.first, self.second], lr=0.1)
        self.kept = []

    def step(self, labels):
        self.optimizer.zero_grad()
        x = self.runtime.tensor(np.ones((2, 4), "f4"))
        hidden = relu(x @ self.first)
        self.kept = [hidden, tanh(hidden), hidden @ self.second]
        loss = cross_entropy(self.kept[-1], self.runtime.tensor(np.array(labels)))
        loss.backward()
        self.optimizer.step()
        return loss


def first_of(tensor):
    return pytest.approx(float(tensor.numpy().reshape(-1)[0]), rel=1e-6)


@pytest.mark.parametrize("caught", ["inside", "outside"])
def test_after_a_bad_label_all_that_was_made_before_is_there_and_training_goes_on(runtime, caught):
    network = Network(runtime)
    with pytest.raises(UserError, match="labels from 0 to 7"), runtime.iteration():
        if caught == "outside":
            network.step([0, 7])
        else:
            with pytest.raises(UserError, match="labels from 0 to 7") as met:
                network.step([0, 7])
            raise met.value
    assert [first_of(tensor) for tensor in network.kept] == [2.0, np.tanh(2.0), 4.0]
    assert first_of(network.first) == 0.5 and first_of(network.second) == 0.5 and network.second.grad is None
    with runtime.iteration():
        assert network.step([0, 1]).item() == pytest.approx(np.log(3))
    # Of 3 classes: d loss / d logits is 1/3 - 1/2 for either label, and 1/3 for the last; hidden values are 2.
    assert network.second.numpy()[0] == pytest.approx(np.array([0.5, 0.5, 0.5]) - 0.1 * 2 * np.array([-1, -1, 2]) / 6)


def test_an_iteration_whose_error_was_caught_goes_on_and_its_trace_is_that_of_the_calls_that_were_made(runtime):
    network = Network(runtime)
    with runtime.iteration():
        network.step([0, 1])
        hidden = network.kept[0] * 3.0
        whole = runtime.trace()
    with runtime.iteration():
        with pytest.raises(UserError, match="labels from 0 to 7"):
            network.step([0, 7])
        hidden = network.kept[0] * 3.0
        trace = runtime.trace()
    names = [call.op for call in trace.calls]
    assert names == [*[call.op for call in whole.calls][:6], "scale"] and names[-2] == "upload"
    made = {tensor for call in trace.calls for tensor in (*call.inputs, *call.outputs)}
    assert {tensor for tensor in trace.tensors if tensor < SURVIVOR_STEP} <= made  # others are older
    if not runtime.device.wall_clock:
        calls = (*whole.calls[:6], whole.calls[-1])
        assert [call.seconds for call in trace.calls] == [call.seconds for call in calls]
    assert [first_of(tensor) for tensor in (hidden, *network.kept[:2])] == [6.0, 2.0, np.tanh(2.0)]
    with runtime.iteration():
        assert network.step([2, 1]).item() > 0.0


def test_a_call_whose_numbers_are_no_rows_is_not_made(runtime):
    table = parameter((3, 2))
    table.fill_(1.0)
    numbers = runtime.tensor(np.array([0, 3]))
    issued = runtime.tracker.sequence
    for _ in range(3):
        with pytest.raises(UserError, match=r"row numbers from 0 to 3 for 3 rows"):
            embedding_(table, numbers)
    assert runtime.tracker.sequence == issued
    numbers.copy_(runtime.tensor(np.array([0, 2])))
    assert embedding_(table, numbers).numpy().tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("policy", ["none", "passive", "recompute"])
def test_an_input_that_a_failed_call_may_overwrite_keeps_its_value(policy):
    with Runtime("cpu:virtual", memory_budget=1536, policy=policy, poisoned=True) as runtime:
        ones = runtime.tensor(np.ones((2, 3), "f4"))
        logits = ones * 2.0
        bad, good = (runtime.tensor(np.array(labels)) for labels in ([0, 7], [0, 1]))
        with pytest.raises(UserError, match="labels from 0 to 7"):
            cross_entropy(donate(logits), bad)
        ones.fill_(9.0)
        assert logits.numpy().tolist() == [[2.0] * 3] * 2
        assert cross_entropy(donate(logits), good).item() == pytest.approx(np.log(3))
        runtime.check()


# A kernel that fails for another reason ------------------------------------------------------------------------------
@pytest.fixture
def broken(monkeypatch):
    """The kernel of ``tanh`` fails while the list is not empty."""
    real, broken = KERNELS["tanh"], []

    def kernel(*arrays, **attrs):
        if broken:
            raise MemoryError("no memory for a table")
        return real(*arrays, **attrs)
    monkeypatch.setitem(KERNELS, "tanh", kernel)
    return broken


def test_the_first_call_of_its_kind_fails_alone_whatever_the_error(runtime, broken):
    x = runtime.tensor(np.zeros(4, "f4")) * 1.0
    broken.append(True)
    for _ in range(2):
        with pytest.raises(MemoryError) as met:
            tanh(x)
        assert met.value.__notes__ == ["in the kernel of tanh"]
    broken.clear()
    assert tanh(x).tolist() == [0.0] * 4


@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
def test_a_later_one_ends_the_device(device, broken):
    with pytest.raises(MemoryError), Runtime(device, memory_budget=1 << 20) as runtime:
        x = runtime.tensor(np.zeros(4, "f4"))
        y = tanh(x)
        broken.append(True)
        tanh(x)
        y.tolist()
    with pytest.raises(MemoryError), runtime:
        tanh(x)
    with runtime:  # no news
        pass


def test_leaving_a_runtime_raises_nothing_over_another_error(one_thread, broken):
    with pytest.raises(KeyError), Runtime("cpu", memory_budget=1 << 20) as runtime:
        x = runtime.tensor(np.zeros(4, "f4"))
        tanh(x)
        broken.append(True)
        tanh(x)
        raise KeyError
    with pytest.raises(MemoryError), runtime:  # still to be told
        pass
    with pytest.raises(ZeroDivisionError), Runtime("cpu", memory_budget=1 << 20) as ended:
        ended.device.clock.issue(0, 0.0, lambda: 1 // 0)  # the device itself
    with pytest.raises(ZeroDivisionError), ended:  # nothing works from then on ...
        parameter((3, 2)).fill_(1.0)
    with ended:  # ... and leaving it is no news
        pass


@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
def test_an_error_that_was_met_holds_no_tensor(device):
    """Not even until Python's cycle collector comes by."""
    def step(leave):
        table = parameter((3, 2))
        with runtime.iteration():
            try:
                embedding_(table, runtime.tensor(np.array([0, 3])))
            except UserError:
                if leave:
                    raise KeyError from None
                raise

    gc.collect()
    gc.disable()
    try:
        with Runtime(device, memory_budget=1 << 20) as runtime:
            for leave in (False, True):
                with suppress(UserError, KeyError):
                    step(leave)
            runtime.memory.free_queued()
            assert runtime.memory.live() == []
    finally:
        gc.enable()
