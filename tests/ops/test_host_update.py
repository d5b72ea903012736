"""Optimizer states in host memory: the bits of updates there, the memory that they take, checkpoints, and their times.
"""

import copy
from functools import cache

import numpy as np
import pytest
from checked_steps import checked_steps
from networks import state_of

from minidl import OutOfMemory, Runtime, nn, ops
from minidl.device.profiles import get
from minidl.errors import UserError
from minidl.optim import SGD, Adadelta, Adam, AdamW
from minidl.optim.on_host import HostArray
from minidl.policies.auto import policy as auto
from minidl.ranks import modelled

OPTIMIZERS = {"adam": Adam, "adamw": AdamW, "adadelta": Adadelta, "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9)}
POLICIES = ("passive", "recompute", "capuchin", "dtr-swap", "auto")
BUDGETS = (75, 50, 0)  # percent of the unmanaged peak; 0: the largest operation
X = np.random.default_rng(0).standard_normal((32, 24)).astype(np.float32)


def train(budget=None, policy="none", *, device="cpu:virtual", host_update=True, optimizer="adamw", steps=5,
          host_memory="8MiB"):
    """State of a small network after some steps, as bytes; the demand of a step; counters."""
    with Runtime(device, memory_budget=budget or "8MiB", policy=policy, host_memory=host_memory,
                 poisoned=device == "cpu:virtual", host_update=host_update) as runtime:
        model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 24))
        made = OPTIMIZERS[optimizer](model.parameters())
        losses, needs = checked_steps(runtime, made, lambda: ops.mean((model(runtime.tensor(X)) - 1.0) ** 2), steps)
        assert losses[-1] < losses[0]
        return state_of(runtime, model, made, losses), needs, runtime.stats()


unlimited = cache(train)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates_on_the_host_have_the_bits_of_updates_on_the_cpu_device(optimizer):
    there, _, _ = train(optimizer=optimizer, host_update=False)
    assert train(optimizer=optimizer)[0] == there


@pytest.mark.default(percent=[50], policy=["recompute", "capuchin"], device=["cpu:virtual"])
@pytest.mark.sampled(device=["cpu:virtual"])
@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
@pytest.mark.parametrize("percent", BUDGETS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_changes_no_bit_of_updates_on_the_host(monkeypatch, policy, percent, device):
    monkeypatch.setattr(auto, "FIRST_WORK", 2e5)
    reference, needs, _ = unlimited(device=device)
    budget = max(needs.largest_op_bytes, needs.unmanaged_peak_bytes * percent // 100)
    state, _, stats = train(budget, policy, device=device)
    assert [name for name in reference if state[name] != reference[name]] == []
    assert stats.swapped_out_bytes + stats.recomputed_bytes > 0


def test_the_device_needs_no_bytes_for_states_and_the_host_has_them():
    _, there, before = train(host_update=False)
    _, here, after = unlimited()
    states = 2 * 4 * (24 * 96 + 96 + 96 * 96 + 96 + 96 * 24 + 24)  # two floats a parameter
    assert there.unmanaged_peak_bytes - here.unmanaged_peak_bytes >= states
    assert after.host_used_bytes - before.host_used_bytes == states
    with pytest.raises(OutOfMemory, match="bytes of optimizer states are to stay in host memory, which has"):
        train(host_memory=states - 1)
    train(host_memory=states)


def test_a_plan_may_use_the_host_memory_that_states_leave(monkeypatch):
    monkeypatch.setattr(auto, "FIRST_WORK", 2e5)
    with Runtime("sim:p100", memory_budget="64KiB", host_memory=100_000, policy="auto", host_update=True) as runtime:
        model = nn.Sequential(*[nn.Linear(24, 24, bias=False) for _ in range(6)])
        optimizer = Adam(model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            model(runtime.tensor(None, shape=(64, 24))).sum().backward()
            optimizer.step()
        assert runtime.guide.planner.limits.host_bytes == 100_000 - 6 * 24 * 24 * 2 * 4


def test_states_of_an_optimizer_that_is_gone_leave_room_for_others():
    with Runtime("cpu:virtual", memory_budget="1MiB", host_memory=2000, host_update=True):
        model = nn.Linear(15, 15)  # 240 parameters
        for _ in range(3):
            Adam(model.parameters())
        with pytest.raises(OutOfMemory):
            both = Adam(model.parameters()), Adam(model.parameters())
            del both


def test_states_are_read_written_and_copied():
    with Runtime("cpu:virtual", memory_budget="1MiB", host_update=True) as runtime:
        model = nn.Linear(8, 8)
        optimizer = Adam(model.parameters(), lr=0.1)
        model(runtime.tensor(X[:, :8])).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        assert all(isinstance(each, HostArray) for each in optimizer.named_states().values())
        assert abs(state["m.0"]).min() > 0
        other = copy.deepcopy(optimizer)
        optimizer.step()
        assert (other.state_dict()["m.0"] == state["m.0"]).all()
        assert (optimizer.state_dict()["m.0"] != state["m.0"]).any()
        optimizer.load_state_dict(state)
        assert all((optimizer.state_dict()[name] == state[name]).all() for name in state)


def test_composed_updates_keep_their_states_on_the_device():
    with Runtime("cpu:virtual", memory_budget="1MiB", host_update=True):
        optimizer = Adam(nn.Linear(8, 8).parameters(), amsgrad=True)
        assert not any(isinstance(each, HostArray) for each in optimizer.named_states().values())


def test_a_device_that_cannot_update_on_the_host_says_so(monkeypatch):
    monkeypatch.setattr("minidl.device.sim.SimDevice.updates_on_host", False)
    with pytest.raises(UserError, match="sim:p100 cannot run optimizer steps on the host"):
        Runtime("sim:p100", host_update=True)


def test_ranks_that_divide_states_keep_them_on_the_device():
    with pytest.raises(UserError, match="ranks that divide states keep them on the device"):
        Runtime("sim:p100", host_update=True, ranks=modelled(2, divide="states"))


def test_a_policy_that_swaps_nothing_has_host_memory_for_states():
    for policy in ("checkmate", "dtr"):
        with Runtime("sim:p100", policy=policy, host_update=True, host_memory="1MiB") as runtime:
            Adam(nn.Linear(8, 8).parameters())
            assert runtime.memory.state.on_host.kept_bytes == 2 * 4 * 72
            runtime.check()


def test_a_step_on_the_host_takes_as_long_as_its_slowest_part():
    seconds, parameters = {}, 4096 * 4096
    for name in ("rtx3090", "a100"):
        with Runtime(f"sim:{name}", policy="none", host_update=True) as runtime:
            model = nn.Linear(4096, 4096, bias=False)
            optimizer = AdamW(model.parameters())
            model(runtime.tensor(None, shape=(1, 4096))).sum().backward()
            before = runtime.stats().seconds
            optimizer.step()
            seconds[name] = runtime.stats().seconds - before
    # Host memory: p, m and v read and written, g read: 28 bytes a parameter. Link: 4 bytes each way.
    assert seconds["rtx3090"] == pytest.approx(28 * parameters / get("rtx3090").host_bandwidth, rel=0.02)
    assert seconds["a100"] == pytest.approx(28 * parameters / get("a100").host_bandwidth, rel=0.02)
    assert seconds["a100"] < seconds["rtx3090"]
