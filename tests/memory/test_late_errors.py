"""The state after a caught error follows from the program alone: neither from delays nor from the policy.

A small training meets bad row numbers, bad labels and a tensor too large for any budget, catches each error where it
comes, and goes on. All that a program can see afterwards, and where each error came, is compared: on worker threads
with delays before every kernel, or with a host that is late; on the virtual clock with kernels that take longer.
"""

import random
import time

import numpy as np
import pytest

import minidl
from bench.support.kernel_cases import OPS
from minidl import OutOfMemory, Runtime, ShapeError, UserError, nn, ops, optim
from minidl.device.clock import COMPUTE
from minidl.kernels.cpu import KERNELS
from minidl.nn import functional as F

# Bytes. The program's peak is 54 KiB; DTR without swapping cannot go below its parameters, states and activations.
BUDGETS = {"none": 1 << 20, "capuchin": 24 << 10, "auto": 24 << 10, "dtr": 44 << 10, "recompute": 24 << 10}
STEPS, ROWS, WIDTH, CLASSES = 7, 12, 16, 5
ERRORS = {2: "label", 3: "row", 5: "room"}  # by step


def none(runtime):
    """Nothing is late."""


def every_kernel(runtime, pause=5e-4):
    """Each kernel is late: the host is far ahead."""
    if runtime.device.wall_clock:
        runtime.device.delay = lambda stream: time.sleep(pause) if stream == COMPUTE else None
    else:
        _lengthen(runtime.device.clock, lambda: pause)


def some_kernels(runtime):
    """Some kernels are late: the host is ahead of some and not of others."""
    draw = random.Random(3)
    if runtime.device.wall_clock:
        runtime.device.delay = lambda stream: time.sleep(draw.choice([0.0, 0.0, 2e-3]))
    else:
        _lengthen(runtime.device.clock, lambda: draw.choice([0.0, 0.0, 2e-3]))


def the_host(runtime):
    """The host is late: the device has finished each call before the next."""
    def wait(*call):
        runtime.device.synchronize(COMPUTE, runtime.device.positions[COMPUTE])
    runtime.executor.inspect = wait


def _lengthen(clock, pause):
    issue = clock.issue

    def slower(stream, seconds, effect=None, **options):
        return issue(stream, seconds + pause() * (stream == COMPUTE), effect, **options)
    clock.issue = slower


class Network(nn.Module):
    def __init__(self):
        self.table, self.norm = nn.Embedding(ROWS, WIDTH), nn.BatchNorm1d(WIDTH)
        self.hidden, self.last = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, CLASSES)

    def forward(self, numbers, late):
        x = F.dropout(self.norm(self.table(numbers)), 0.2)
        x = F.dropout(self.hidden(x).tanh(), 0.1)
        if late == "room":
            minidl.zeros(1 << 20)
        return self.last(x)


def outcome(device, policy, delay):
    """All that the program sees: where errors came, losses, and the state of every object."""
    with Runtime(device, memory_budget=BUDGETS[policy], policy=policy, host_memory="1MiB", poisoned=True) as runtime:
        network = Network()
        for p in network.parameters():
            p.data.copy_(minidl.tensor(np.random.default_rng(p.numel()).standard_normal(p.shape).astype("f4") * 0.3))
        network.train()
        adam = optim.Adam(network.parameters(), lr=0.01)
        schedule = optim.lr_scheduler.StepLR(adam, 2, 0.5)
        delay(runtime)
        seen = []
        for step in range(STEPS):
            data, what = np.random.default_rng(step), ERRORS.get(step, "")
            numbers, labels = data.integers(0, ROWS, (2, 24)), data.integers(0, CLASSES, (2, 24))
            numbers[1, 3] = ROWS if what == "row" else 0
            labels[1, 3] = CLASSES + 2 if what == "label" else 0
            stage = "begin"
            try:
                if step % 2:
                    adam.zero_grad()
                losses = []
                for part, own in zip(numbers, labels, strict=True):  # the error comes in the second half
                    stage = "forward"
                    logits = network(minidl.tensor(part), what if len(losses) else "")
                    stage = "loss"
                    losses.append(F.cross_entropy(logits, minidl.tensor(own)))
                    stage = "backward"
                    losses[-1].backward()
                stage = "step"
                adam.step()
                schedule.step()
                seen += [loss.item() for loss in losses] if step % 3 else []
            except (UserError, OutOfMemory) as error:
                seen.append((step, stage, type(error), str(error).partition(": need")[0], runtime.counters.copy()))
        state = {**network.state_dict(), **adam.state_dict(), "rate": adam.lr, "epoch": schedule.last_epoch}
        gradients = {name: None if p.grad is None else p.grad.numpy() for name, p in network.named_parameters()}
        runtime.executor.inspect = None
        runtime.check()
        return seen, {name: np.asarray(value).tobytes() for name, value in {**state, **gradients}.items()}, (
            runtime.counters, minidl.rand(3).tolist(), adam.state_dict()["step"].tolist())


DELAYS = {delay.__name__: delay for delay in (none, every_kernel, some_kernels, the_host)}


@pytest.fixture(scope="module")
def expected():
    return outcome("cpu:virtual", "none", none)


def test_the_program_meets_each_error_where_it_makes_it(expected):
    seen, _, (_, _, steps) = expected
    places = [entry[:4] for entry in seen if isinstance(entry, tuple)]
    assert places == [
        (2, "loss", UserError, f"cross_entropy: labels from 0 to {CLASSES + 2} for {CLASSES} classes (0 to 4)"),
        (3, "forward", UserError, f"embedding: row numbers from 0 to {ROWS} for {ROWS} rows (0 to 11)"),
        (5, "forward", OutOfMemory, places[2][3])]
    assert steps == [STEPS - len(ERRORS)] * 7


@pytest.mark.default(policy=["auto", "dtr"], delay=["every_kernel", "the_host"], device=["cpu"])
@pytest.mark.parametrize("device", ["cpu", "cpu:virtual"])
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("policy", BUDGETS)
def test_what_an_error_leaves_is_alike_whatever_is_late_and_whatever_the_policy(expected, device, policy, delay):
    assert outcome(device, policy, DELAYS[delay]) == expected


def test_the_operations_that_the_program_waits_for_are_those_whose_kernels_refuse_values():
    assert {name for name, op in OPS.items() if op.checks} == {
        name for name, kernel in KERNELS.items() if "Raises" in (kernel.__doc__ or "")}


def test_data_that_do_not_fit_are_refused_before_anything_is_written():
    with Runtime("cpu", memory_budget="1MiB", policy="none") as runtime:
        x = runtime.tensor(np.ones(4, "f4"))
        for _ in range(2):
            with pytest.raises(ShapeError, match=r"upload: data of shape \[3\] for a tensor of shape \[4\]"):
                ops.upload_(x, np.zeros(3, "f4"))
        assert x.tolist() == [1.0] * 4
