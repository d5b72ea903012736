"""A call that fails ends alone: whatever else a program has made stays as it is, whatever the budget."""

import gc
from contextlib import suppress

import numpy as np
import pytest

from minidl import Runtime, UserError, no_grad, parameter
from minidl.errors import Unrecoverable
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
        more = tanh(hidden)
        logits = hidden @ self.second
        loss = cross_entropy(logits, self.runtime.tensor(np.array(labels)))
        after = loss * 2.0
        self.kept = [hidden, more, logits, loss, after]
        loss.backward()
        self.optimizer.step()
        return loss


def read(tensor):
    """A tensor's first element; None if it has no value."""
    try:
        return pytest.approx(float(tensor.numpy().reshape(-1)[0]), rel=1e-6)
    except Unrecoverable as error:
        assert "cross_entropy failed: cross_entropy: labels from 0 to 7 for 3 classes" in str(error)
        return None


@pytest.mark.parametrize("caught", ["inside", "outside"])
def test_after_a_bad_label_all_that_was_made_before_is_there_and_training_goes_on(runtime, caught):
    network = Network(runtime)
    with pytest.raises(UserError, match="labels from 0 to 7"), runtime.iteration():
        if caught == "outside":
            network.step([0, 7]).item()
        else:
            with pytest.raises(UserError, match="labels from 0 to 7") as met:
                network.step([0, 7]).item()
            raise met.value
    assert [read(tensor) for tensor in network.kept] == [2.0, np.tanh(2.0), 4.0, None, None]
    assert read(network.first) == 0.5 and read(network.second) == 0.5
    with runtime.iteration():
        assert network.step([0, 1]).item() == pytest.approx(np.log(3))
    # Of 3 classes: d loss / d logits is 1/3 - 1/2 for either label, and 1/3 for the last; hidden values are 2.
    assert network.second.numpy()[0] == pytest.approx(np.array([0.5, 0.5, 0.5]) - 0.1 * 2 * np.array([-1, -1, 2]) / 6)


def test_an_iteration_whose_error_was_caught_ends_well_and_what_failed_has_no_value_after_it(runtime):
    network = Network(runtime)
    with runtime.iteration():
        with pytest.raises(UserError, match="labels from 0 to 7"):
            network.step([0, 7]).item()
        hidden = network.kept[0] * 3.0
    assert [read(tensor) for tensor in network.kept] == [2.0, np.tanh(2.0), 4.0, None, None]
    assert read(hidden) == 6.0
    with runtime.iteration():
        assert network.step([2, 1]).item() == pytest.approx(np.log(3))


def test_what_is_made_of_a_value_that_failed_is_an_error_that_names_it(runtime):
    table = parameter((3, 2))
    table.fill_(1.0)
    with no_grad():
        with pytest.raises(UserError, match=r"row numbers from 0 to 3 for 3 rows"):
            rows = embedding_(table, runtime.tensor(np.array([0, 3])))
            rows.numpy()
        with pytest.raises(Unrecoverable, match="has no value: embedding failed"):
            (rows * 2.0).numpy()
        with pytest.raises(Unrecoverable, match="has no value: embedding failed"):
            table.narrow(0, 0, 2).copy_(rows)
        assert table.numpy().tolist() == [[1.0, 1.0]] * 3
        assert embedding_(table, runtime.tensor(np.array([0, 2]))).numpy().tolist() == [[1.0, 1.0]] * 2


def test_a_parameter_made_before_an_error_is_noticed_is_written(runtime):
    table = parameter((3, 2))
    table.fill_(1.0)
    rows = embedding_(table, runtime.tensor(np.array([0, 3])))
    try:
        del rows
        fresh = parameter((2, 2))
        fresh.fill_(3.0)
        fresh.numpy()
    except UserError:  # of the embedding, whose bytes the new parameter may have
        fresh = parameter((2, 2))
        fresh.fill_(3.0)
    assert fresh.numpy().tolist() == [[3.0, 3.0]] * 2


@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
def test_an_error_that_nobody_has_met_is_raised_where_the_runtime_is_left(device):
    with (pytest.raises(UserError, match="row numbers from 0 to 3 for 3 rows"),
          Runtime(device, memory_budget=1 << 20) as runtime):
        table = parameter((3, 2))
        table.fill_(1.0)
        before = table * 2.0
        try:
            rows = embedding_(table, runtime.tensor(np.array([0, 3])))
        except UserError:
            pytest.skip("the kernel was so fast that the call itself raised it")
    with runtime:  # told once
        assert before.numpy()[0, 0] == 2.0
        with pytest.raises(Unrecoverable, match="has no value: embedding failed"):
            rows.numpy()


def test_leaving_a_runtime_raises_nothing_over_another_error_and_nothing_twice(one_thread):
    with pytest.raises(KeyError), Runtime("cpu", memory_budget=1 << 20) as runtime:
        table = parameter((3, 2))
        embedding_(table, runtime.tensor(np.array([0, 3])))
        raise KeyError
    with pytest.raises(UserError, match="row numbers"), runtime:  # still to be told
        pass
    with runtime:
        assert table.shape == (3, 2)
        runtime.device.close()
    with pytest.raises(ZeroDivisionError), Runtime("cpu", memory_budget=1 << 20) as broken:
        broken.device.clock.issue(0, 0.0, lambda: 1 // 0)  # the device itself
    with pytest.raises(ZeroDivisionError), broken:  # nothing works from then on ...
        parameter((3, 2)).fill_(1.0)
    with broken:  # ... and leaving it is no news
        pass


@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
def test_an_error_that_was_met_holds_no_tensor(device):
    """Not even until Python's cycle collector comes by."""
    def step(leave):
        table = parameter((3, 2))
        with runtime.iteration():
            rows = embedding_(table, runtime.tensor(np.array([0, 3])))
            if leave:
                raise KeyError
            rows.numpy()

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


def test_what_fails_in_an_iteration_that_is_left_by_an_error_is_not_the_next_ones(runtime):
    for _ in range(20):
        with suppress(KeyError), runtime.iteration():
            try:
                embedding_(parameter((3, 2)), runtime.tensor(np.array([0, 3])))
            except UserError:
                raise KeyError from None
            raise KeyError
        with runtime.iteration():
            assert runtime.tensor(np.ones(2, "f4")).sum().item() == 2.0
