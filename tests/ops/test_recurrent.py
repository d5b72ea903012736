"""A recurrent layer is one operation for each direction, with the values of several and the same bits in any memory."""

from collections import Counter

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn, optim
from minidl.device.cpu.device import CpuDevice
from minidl.errors import ShapeError
from minidl.nn import functional as F
from minidl.ops import recurrent

# Bytes; the peak is about 200 KiB. DTR without swapping cannot go below parameters and the states of their layers.
BUDGETS = {"none": 1 << 20, "passive": 72 << 10, "auto": 72 << 10, "capuchin": 72 << 10, "recompute": 72 << 10,
           "dtr": 128 << 10}


def trained(policy, *, slices=1, steps=4, counts=None, device="cpu:virtual"):
    """The losses and the state after a few steps of a bidirectional LSTM and a GRU of two layers."""
    draw = np.random.default_rng(0)
    with Runtime(device, memory_budget=BUDGETS[policy], policy=policy, poisoned=True, slices=slices) as runtime:
        first = nn.LSTM(6, 8, bidirectional=True, batch_first=True)
        second, last = nn.GRU(16, 8, 2, batch_first=True), nn.Linear(8, 3)
        modules = nn.ModuleList([first, second, last])
        for p in modules.parameters():
            p.data.copy_(minidl.tensor(draw.uniform(-0.4, 0.4, p.shape).astype("f4")))
        optimizer = optim.Adam(modules.parameters(), lr=0.05)
        if counts is not None:
            runtime.executor.inspect = lambda name, *_: counts.update([name])
        losses = []
        for _ in range(steps):
            with runtime.iteration():
                optimizer.zero_grad()
                x = runtime.tensor(draw.standard_normal((10, 9, 6)).astype("f4"))
                y, (h, c) = first(x)
                y, end = second(y)
                classes = runtime.tensor(draw.integers(0, 3, 10))
                loss = F.cross_entropy(last(end[-1]), classes) + y.mean() + (h * c).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        runtime.check()
        return losses, {name: value.tobytes() for name, value in modules.state_dict().items()}


@pytest.fixture(scope="module")
def alone():
    return trained("none")


@pytest.mark.default(policy=["passive", "recompute", "dtr"])  # planning takes auto a minute
@pytest.mark.parametrize("policy", [policy for policy in BUDGETS if policy != "none"])
def test_the_bits_are_those_of_an_unmanaged_run_under_every_policy(alone, policy):
    assert trained(policy) == alone


def test_a_layer_is_one_operation_for_each_direction():
    counts = Counter()
    trained("none", steps=1, counts=counts)
    assert {name: counts[name] for name in ("lstm", "lstm_grad", "gru", "gru_grad")} == {
        "lstm": 2, "lstm_grad": 2, "gru": 2, "gru_grad": 2}
    assert not counts["sigmoid"] and not counts["tanh"] and sum(counts.values()) < 110


def test_a_device_without_these_operations_composes_them(alone, monkeypatch):
    monkeypatch.setattr(CpuDevice, "fuses_recurrence", lambda self, x: False)
    counts = Counter()
    losses, _ = trained("none", counts=counts)
    assert counts["sigmoid"] and not counts["lstm"]
    np.testing.assert_allclose(losses, alone[0], rtol=2e-5)


def test_slices_of_a_batch_have_its_values(alone):
    np.testing.assert_allclose(trained("none", slices=3)[0], alone[0], rtol=2e-5)


def test_operands_that_do_not_fit_are_refused_with_their_shapes():
    with Runtime("cpu:virtual", memory_budget="1MiB", policy="none") as runtime:
        def ones(*shape):
            return runtime.tensor(np.ones(shape, "f4"))
        for given, w, h, c, b in ((ones(2, 3, 9), ones(8, 2), ones(2, 2), ones(2, 2), None),
                                  (ones(2, 3, 8), ones(8, 2), ones(1, 2), ones(1, 2), None),
                                  (ones(2, 3, 8), ones(8, 2), ones(2, 2), ones(2, 1), None),
                                  (ones(2, 3, 8), ones(8, 2), ones(2, 2), ones(2, 2), ones(2))):
            with pytest.raises(ShapeError, match="lstm"):
                recurrent.lstm(given, w, b, h, c)
        with pytest.raises(ShapeError, match="gru needs terms"):
            recurrent.gru(ones(2, 3, 8), ones(8, 2), None, ones(2, 2))
