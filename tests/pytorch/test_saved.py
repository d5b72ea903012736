"""Under the hooks on saved tensors PyTorch's own rules hold, and a program can enter and leave them."""

import contextlib
import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from torch_nets import NETWORKS, ROOMY, forced, run, same  # noqa: E402

import minidl.torch  # noqa: E402
from minidl.errors import UserError  # noqa: E402
from minidl.torch.course import Phase  # noqa: E402

SIDE = 64  # 16,384 bytes a matrix


def leaf():
    return torch.linspace(0, 1, SIDE * SIDE).reshape(SIDE, SIDE).requires_grad_()


def written_over(x):
    y = x.exp()
    y.add_(1)
    return y.sum()


@pytest.mark.parametrize("steps", [0, 2])  # all leaves; all stays
def test_a_saved_tensor_that_is_written_over_is_an_error_as_without_hooks(steps):
    memory, x = minidl.torch.managed(ROOMY), leaf()
    optimizer = torch.optim.SGD([x], 0.0)
    with memory:
        for _ in range(steps):
            optimizer.zero_grad()
            x.exp().sum().backward()
            optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            written_over(x).backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        written_over(x).backward()


def test_a_tensor_that_is_saved_before_and_after_a_write_has_both_values():
    def gradient():
        x = leaf()
        y = x * 2
        y.sin()  # saves y; nothing takes its gradient
        y.mul_(3)
        loss = y.sin().sum()
        del y
        loss.backward()
        return x.grad
    expected = gradient()
    with minidl.torch.managed(ROOMY):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            x = leaf()
            y = x * 2
            z = y.sin()
            y.mul_(3)
            z.sum().backward()
        assert gradient().equal(expected)


def test_only_what_autograd_alone_holds_leaves():
    x = leaf()
    with minidl.torch.managed(ROOMY) as memory:
        y = x.exp()
        loss = y.sum()
        alive = weakref.ref(y.untyped_storage())
        held = y.data_ptr()
        assert memory.backend.host.used == y.numel() * 4
        assert y.data_ptr() == held and y.detach().numpy().shape == (SIDE, SIDE)
        del y
        assert alive() is None  # though the graph wants its values
        loss.backward()
    assert x.grad.equal(x.detach().exp())
    assert memory.backend.host.used == 0


def test_a_storage_that_is_saved_several_times_and_in_views_is_copied_once():
    x = leaf()
    with minidl.torch.managed(ROOMY) as memory:
        y = x * 1
        loss = (y * y).sum() + (y[:32] * y[32:].sin()).sum() + y.t().exp().sum()
        y_bytes, exp_bytes, sin_bytes = 4 * SIDE * SIDE, 4 * SIDE * SIDE, 4 * SIDE * SIDE // 2
        assert memory.report().out_bytes <= y_bytes + exp_bytes + sin_bytes
        del y
        loss.backward()
        assert memory.report().in_bytes <= y_bytes + exp_bytes + sin_bytes


def test_graphs_that_outlive_the_managing_come_back_and_leave_nothing_behind():
    x = leaf()
    with minidl.torch.managed(ROOMY) as memory:
        loss = x.exp().sin().sum()
    assert memory.backend.host.used > 0
    loss.backward()
    expected = leaf()
    expected.exp().sin().sum().backward()
    assert x.grad.equal(expected.grad)
    del loss
    gc.collect()
    assert memory.backend.host.used == 0


def test_no_reference_cycle_keeps_what_is_saved():
    gc.collect()
    gc.disable()
    try:
        for how in ("keep", "swap", "drop"):
            memory = forced(how)
            x = leaf()
            optimizer = torch.optim.SGD([x], 0.0)
            with memory:
                for _ in range(4):
                    y = (x * 2).exp()  # saved by the node that makes it
                    alive = weakref.ref(y.untyped_storage())
                    y.sin().sum().backward()
                    optimizer.step()
                    del y
                    assert alive() is None
                y = (x * 2).exp()
                alive = weakref.ref(y.untyped_storage())
                y = y.sin()
                del y  # without a backward pass, which would take the graph apart
                assert alive() is None
            assert memory.report().steps[Phase.GUIDED] == 2 and not memory.report().diverged
            assert memory.backend.host.used == 0
    finally:
        gc.enable()


def test_started_and_stopped_as_a_decorator_or_as_a_context_it_is_the_same():
    make = NETWORKS["convolutional"]
    expected = run(make, 4)
    memory = forced("swap")
    memory.start()
    with pytest.raises(UserError, match="already"):
        memory.start()
    assert same(run(make, 4), expected)
    memory.stop()
    memory.stop()
    again = forced("swap")
    decorated = again(run)
    for _ in range(2):
        assert same(decorated(make, 4), expected)
    assert again.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 6}  # what is known stays known
    assert memory.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 2}


def test_managing_within_managing_leaves_it_to_the_inner_one():
    make = NETWORKS["convolutional"]
    outer, inner = (forced("mixed") for _ in range(2))
    with outer:
        assert same(run(make, 4, inner), run(make, 4))
        assert outer.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 2}
    assert inner.report().steps == {Phase.AWAY: 1, Phase.MEASURED: 1, Phase.GUIDED: 2}


def test_what_a_step_takes_is_told_by_budget_from_its_floor_up():
    memory = minidl.torch.managed(ROOMY)
    with pytest.raises(UserError, match="second step"):
        memory.fit()
    run(NETWORKS["transformer"], 2, memory)
    found = memory.fit()
    points, report = found.points, memory.report()
    assert sum(found.floor.parts.values()) == found.floor.nbytes == report.floor_bytes and str(points[-1]) in str(found)
    assert points[0].budget_bytes == report.unmanaged_bytes and points[0].slower == pytest.approx(1.0, rel=1e-3)
    assert points[-1].budget_bytes == report.floor_bytes
    assert all(point.peak_bytes <= point.budget_bytes for point in points)
    assert all(one.slower <= other.slower * 1.02 for one, other in zip(points, points[1:], strict=False))


def test_what_finds_no_room_on_the_host_stays():
    make = NETWORKS["convolutional"]
    memory = forced("swap", host=100_000)
    assert same(run(make, 4), run(make, 4, memory))
    assert memory.report().refused > 0 and memory.report().host_bytes <= 100_000


def test_a_step_that_leaves_its_plan_lets_what_it_has_kept_leave_too():
    x, w = torch.randn(SIDE, SIDE), leaf()
    optimizer = torch.optim.SGD([w], 0.0)
    memory = forced("keep", budget=100_000)  # its peak is 82,432: no step may keep everything without a plan
    with memory:
        for _ in range(3):
            optimizer.zero_grad()
            (x @ w).exp().sin().sum().backward()
            optimizer.step()
        copied = memory.report().out_bytes
        y = (x @ w).exp()
        alive = weakref.ref(y.untyped_storage())
        loss = y.sigmoid()[:32].exp().sum()  # a shape that was never packed
        del y
        assert memory.report().diverged == 1 and memory.report().out_bytes > copied
        assert alive() is None
        loss.backward()


def elsewhere(write):
    """Call a function in another thread, whose calls the recorder does not see."""
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def with_a_bias_written_elsewhere(memory):
    """The loss of a step in whose midst another thread writes what dropped tensors are computed from."""
    torch.manual_seed(0)
    network, x = torch.nn.Sequential(torch.nn.Linear(SIDE, SIDE), torch.nn.Tanh()), torch.randn(SIDE, SIDE)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def write():
        with torch.no_grad():
            network[0].bias.add_(1.0)

    with memory:
        for n in range(4):
            optimizer.zero_grad()
            loss = (network(x) * 2).sin().sum()
            if n == 3:
                elsewhere(write)
            loss.backward()
            optimizer.step()
    return network[0].weight.detach()


def test_what_cannot_be_computed_again_as_it_was_is_refused_by_name():
    expected = with_a_bias_written_elsewhere(contextlib.nullcontext())
    with pytest.raises(minidl.torch.NotReplayable, match="recompute=False"):
        with_a_bias_written_elsewhere(forced("drop"))
    swapping = forced("drop", recompute=False)
    assert with_a_bias_written_elsewhere(swapping).equal(expected)


def test_a_replay_reads_a_tensor_that_another_graph_saved_and_that_graph_is_gone():
    def gradient(memory):
        x = leaf()
        optimizer = torch.optim.SGD([x], 0.1)
        with memory:
            for _ in range(4):
                optimizer.zero_grad()
                torch.autograd.grad((x * 2).sin().sum(), x)  # no call is recorded until the next pack
                y = x * 3
                y.sin()  # saves y, and is gone at once
                loss = y.exp().sum()  # saves its result, which a replay computes from y
                del y
                loss.backward()
                optimizer.step()
        return x.grad
    memory = forced("drop")
    assert gradient(memory).equal(gradient(contextlib.nullcontext())) and memory.report().replayed_calls == 4


@pytest.mark.parametrize("written", ["before it is dropped", "after it is dropped"])
def test_a_replay_does_not_count_on_a_tensor_that_the_program_still_holds(written):
    def gradient(memory):
        x, average = leaf(), torch.ones(SIDE, SIDE)
        optimizer = torch.optim.SGD([x], 0.1)
        with memory:
            for n in range(4):
                optimizer.zero_grad()
                double = average * 2
                if n == 3 and written.startswith("before"):
                    elsewhere(lambda: average.mul_(3))
                loss = (x + double).sigmoid().sum()
                if n == 3 and written.startswith("after"):
                    average.mul_(3)
                del double
                loss.backward()
                optimizer.step()
        return x.grad
    memory = forced("drop")
    assert gradient(memory).equal(gradient(contextlib.nullcontext())) and memory.report().replayed_calls > 2


def test_functional_transforms_are_refused_by_pytorch_itself():
    with minidl.torch.managed(ROOMY), pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: (x ** 3).sum())(torch.ones(3))
