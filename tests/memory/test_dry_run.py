"""What a dry run says is what a real one then needs; of a program that branches on its values, on one path."""

import numpy as np
import pytest

from minidl import Runtime, nn
from minidl.ops.elementwise import tanh
from minidl.ops.linear import linear as linear_
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD, Adam

WIDTH, BATCH, EXPERTS = 32, 16, 8


def _classifier(runtime, make, early):
    """A step of a small network; its gradients are let go of at its start (``early``), or after the forward pass."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = make(model.parameters())

    def step():
        x = runtime.tensor(np.ones((BATCH, WIDTH), np.float32))
        labels = runtime.tensor(np.zeros(BATCH, np.int64))
        if early:
            optimizer.zero_grad()
        loss = cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return step


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("make", [lambda ps: SGD(ps, lr=0.1), lambda ps: Adam(ps)], ids=["sgd", "adam"])
def test_a_dry_run_and_the_iterations_after_it_have_one_peak(make, early):
    """Also when gradients of the step before are there, which the step lets go of: before the first step, too, which
    alone has none if they are let go of late."""
    with Runtime("cpu", policy="none", memory_budget=1 << 22) as runtime:
        step = _classifier(runtime, make, early)
        first = runtime.dry_run(step)
        for number in range(3):
            demand = runtime.dry_run(step)
            assert demand == first
            runtime.memory.arena.reset_peak()
            with runtime.iteration():
                step()
            peak = runtime.stats().peak_bytes
            assert demand.unmanaged_peak_bytes == peak if number or early else demand.unmanaged_peak_bytes > peak
            assert not demand.reads_values


def test_a_dry_run_says_whether_values_were_read_on_its_way():
    with Runtime("cpu", policy="none", memory_budget=1 << 22) as runtime:
        x = runtime.tensor(np.ones(4, np.float32))
        assert runtime.dry_run(lambda: tanh(x) if x.sum().item() > 0 else x).reads_values is False  # NaN: the last call
        assert runtime.dry_run(lambda: x if x.sum().item() > 0 else tanh(x)).reads_values
        assert not runtime.dry_run(lambda: tanh(x).numpy()).reads_values


def _mixture(budget, policy):
    """Which expert learns depends on what the router says; returns the largest call seen, the peak, and all bits."""
    rng = np.random.default_rng(3)
    with Runtime("cpu", policy=policy, memory_budget=budget, host_memory=1 << 22) as runtime:
        router = nn.Linear(WIDTH, EXPERTS)
        experts = [nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)]
        parameters = [*router.parameters(), *(p for expert in experts for p in expert.parameters())]
        optimizer = Adam(parameters, lr=0.05)
        sizes = []
        for _ in range(6):
            with runtime.iteration():
                def step():
                    x = runtime.tensor(rng.standard_normal((BATCH, WIDTH)).astype(np.float32))
                    scores = router(x)
                    chosen = int(np.nan_to_num(scores.numpy()).sum(0).argmax())
                    optimizer.zero_grad()
                    loss = (tanh(experts[chosen](x)) * 0.5).mean() + tanh(scores).mean()
                    loss.backward()
                    optimizer.step()
                    return chosen
                state = rng.bit_generator.state
                demand = runtime.dry_run(step)
                rng.bit_generator.state = state
                sizes.append(demand.largest_op_bytes)
                step()
        assert demand.reads_values
        return max(sizes), runtime.stats().peak_bytes, [p.numpy().tobytes() for p in parameters]


@pytest.mark.parametrize("policy", ["passive", "auto"])
def test_a_mixture_of_experts_trains_in_the_memory_of_its_largest_call(policy):
    """Where there is room Adam has parameters, moments and gradients of two layers in one call; here of one weight."""
    floor, peak, bits = _mixture(1 << 22, "none")
    assert floor == 4 * WIDTH * WIDTH * 4 and peak > 7 * floor
    assert _mixture(floor, policy)[2] == bits


def test_what_has_no_elements_has_a_block_and_counts_as_one():
    """An expert without tokens: the floor that is stated is enough."""
    def step():
        rows = runtime.tensor(np.ones((4, 0), np.float32)).sum(0, keepdim=True)
        linear_(runtime.tensor(np.ones((0, 3), np.float32)), runtime.tensor(np.ones((2, 3), np.float32)))
        return rows

    with Runtime("cpu", policy="none", memory_budget=1 << 20) as runtime:
        demand = runtime.dry_run(step)
        step()
        assert demand.unmanaged_peak_bytes == runtime.stats().peak_bytes
        assert demand.largest_op_bytes == 3 * 256
    with Runtime("cpu", policy="passive", memory_budget=demand.largest_op_bytes, host_memory=1 << 20) as runtime:
        assert step().shape == (1, 0)
