"""A dropped value comes back bit for bit: lineage is replayed, in program order, each call once.

Sizes are in units of 256 bytes: tensors of 64 float32, unless a test says otherwise.
"""

import numpy as np
import pytest
from networks import UNIT, drop, launches, leaf, small_runtime, swap_out, used_units

import minidl
from minidl import nn
from minidl.dispatch import apply_all
from minidl.errors import OutOfMemory, Unrecoverable
from minidl.memory import neighbourhood
from minidl.memory.lineage import missing_calls
from minidl.memory.storage import IN, OUT, RECOMPUTE
from minidl.ops.batchnorm import BATCH_NORM_STATS, batch_norm
from minidl.ops.elementwise import add, exp, mul, relu, scale, shift, tanh
from minidl.ops.pool import MAX_POOL2D
from minidl.ops.shape import concat
from minidl.ops.update import fill_, full
from minidl.plan.plan import Action
from minidl.runtime import Runtime
from minidl.tensor import Tensor

RNG = np.random.default_rng(3)


def value(tensor: Tensor) -> float:
    return float(tensor.numpy().ravel()[0])


def images(runtime: Runtime, *shape: int) -> Tensor:
    return runtime.tensor(RNG.standard_normal(shape).astype(np.float32))


# Identity -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("network", [
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()),
    lambda: nn.Sequential(nn.ConvReLU2d(3, 4, 3, padding=1)),
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh()),
    lambda: nn.Sequential(nn.MaxPool2d(2), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 5)),
    lambda: nn.Sequential(nn.Dropout(0.5), nn.AdaptiveAvgPool2d(3)),
])
@pytest.mark.parametrize("grad", [True, False])
def test_a_dropped_value_comes_back_bit_for_bit(network, grad):
    with small_runtime() as runtime:
        model = network()
        x = images(runtime, 2, 3, 8, 8)
        runtime.executor.grad_enabled = grad
        y = model(x)
        expected = y.numpy()
        for storage in runtime.memory.live():  # all at once, whatever can go
            if storage.call is not None:
                assert runtime.memory.evict(storage, Action.DROP)
        assert y.status is RECOMPUTE
        assert y.numpy().tobytes() == expected.tobytes()
        runtime.check()


def test_one_pass_replays_each_missing_call_once_in_program_order():
    with small_runtime() as runtime:
        x = leaf(runtime)
        a = scale(x, 2.0)
        b = shift(a, 1.0)
        c = exp(a)
        d = add(b, c)
        expected = d.numpy()
        for tensor in (a, b, c, d):
            drop(runtime, tensor)
        with launches(runtime) as names:
            assert d.numpy().tobytes() == expected.tobytes()
        assert names == ["scale", "shift", "exp", "add"]
        # Collective recomputation: what came by on the way and is wanted has its bytes again.
        assert {t.status for t in (a, b, c, d)} == {IN}


def test_replaying_a_residual_chain_costs_its_length_and_not_two_to_its_power():
    depth = 40
    with small_runtime() as runtime:
        y = leaf(runtime, 1.0)
        for _ in range(depth):
            y = add(scale(y, 0.25), scale(y, 0.75))  # each value is used twice
        drop(runtime, y)
        with launches(runtime) as names:
            assert value(y) == 1.0
        assert len(names) == 3 * depth


def test_a_replay_starts_from_the_nearest_bytes_wherever_they_are():
    with small_runtime() as runtime:
        x = leaf(runtime)
        a = scale(x, 2.0)
        b = shift(a, 1.0)
        c = exp(b)
        swap_out(runtime, b)
        drop(runtime, a)
        drop(runtime, c)
        with launches(runtime) as names:
            assert value(c) == np.exp(np.float32(3.0))
        assert names == ["exp"] and b.status is IN and a.status is RECOMPUTE


def test_intermediates_that_nobody_wants_are_gone_after_the_replay():
    with small_runtime() as runtime:
        x = leaf(runtime)
        y = x
        for _ in range(5):
            y = shift(y, 1.0)
        drop(runtime, y)
        runtime.memory.arena.reset_peak()
        assert value(y) == 6.0
        assert used_units(runtime) == 2
        assert runtime.stats().peak_bytes == 2 * UNIT  # each call writes over the value before it


def test_the_trace_of_an_iteration_does_not_show_replays():
    def trace(*, dropping: bool):
        with small_runtime() as runtime:
            x = leaf(runtime)
            y = x
            for _ in range(4):
                y = scale(y, 2.0)
            if dropping:
                drop(runtime, y)
            with launches(runtime) as names:
                assert value(y) == 16.0
            assert len(names) == 4 * dropping and y.access_count == 2  # made, and read
            return runtime.trace()
    plain, replayed = trace(dropping=False), trace(dropping=True)
    assert [call.op for call in plain.calls] == ["upload", *["scale"] * 4, "read"]
    # The replay wrote over what it had made, and freed it: neither shows.
    assert replayed.calls == plain.calls and replayed.tensors == plain.tensors


# Several outputs ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lost", [0, 1])
def test_replaying_one_output_leaves_a_resident_sibling_alone(lost):
    with small_runtime() as runtime:
        x = images(runtime, 2, 4, 8, 8)
        outputs = apply_all(MAX_POOL2D, x, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
        wanted, sibling = outputs[lost], outputs[1 - lost]
        expected = wanted.numpy()
        drop(runtime, wanted)
        fill_(sibling, 7)  # if the replay wrote to it, this would be gone
        block, used = sibling.storage.block, used_units(runtime)
        assert wanted.numpy().tobytes() == expected.tobytes()
        assert sibling.storage.block is block and (sibling.numpy() == 7).all()
        assert used_units(runtime) == used + -(-wanted.nbytes // UNIT)  # the scratch that took its place is free


def test_batch_statistics_are_replayed_one_by_one():
    with small_runtime() as runtime:
        x = images(runtime, 4, 64, 4, 4)
        mean, var = apply_all(BATCH_NORM_STATS, x)
        expected = mean.numpy(), var.numpy()
        drop(runtime, var)
        assert mean.status is IN and var.numpy().tobytes() == expected[1].tobytes()
        drop(runtime, mean)
        swap_out(runtime, var)
        assert mean.numpy().tobytes() == expected[0].tobytes() and var.status is OUT
        drop(runtime, mean)
        twice = scale(var, 2.0)  # noqa: F841 - its lineage keeps the record of var, and nothing asks for the bytes
        del var
        used = used_units(runtime)
        assert mean.numpy().tobytes() == expected[0].tobytes() and used_units(runtime) == used + 1


def test_siblings_that_are_both_dropped_come_back_together():
    with small_runtime() as runtime:
        x = images(runtime, 2, 4, 8, 8)
        y, index = apply_all(MAX_POOL2D, x, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
        expected = index.numpy()
        drop(runtime, y)
        drop(runtime, index)
        with launches(runtime) as names:
            y.numpy()
            assert index.numpy().tobytes() == expected.tobytes()
        assert names == ["max_pool2d"]


# Purity -------------------------------------------------------------------------------------------------------------
def test_running_statistics_are_updated_once_however_often_the_forward_is_replayed():
    with small_runtime() as runtime:
        norm = nn.BatchNorm2d(4)
        x = images(runtime, 8, 4, 4, 4)
        y = batch_norm(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, training=True)
        running = norm.running_mean.numpy(), norm.running_var.numpy()
        expected = y.numpy()
        assert np.allclose(running[0], 0.1 * x.numpy().mean((0, 2, 3)), atol=1e-6)
        for _ in range(3):
            drop(runtime, y)
            with launches(runtime) as names:
                assert y.numpy().tobytes() == expected.tobytes()
            assert "batch_norm_update_" not in names and "batch_norm" in names
        assert (norm.running_mean.numpy() == running[0]).all() and (norm.running_var.numpy() == running[1]).all()


def test_dropout_replays_the_same_mask():
    with small_runtime() as runtime:
        layer = nn.Dropout(0.5)
        x = leaf(runtime, units=8)
        first, second = layer(x), layer(x)
        expected = first.numpy()
        assert 0.3 < (expected == 0).mean() < 0.7 and (second.numpy() != expected).any()
        drop(runtime, first)
        assert first.numpy().tobytes() == expected.tobytes()


def test_a_gradient_is_right_when_all_that_it_needs_was_dropped():
    with small_runtime() as runtime:
        w = leaf(runtime, 0.5, requires_grad=True)
        y = mul(tanh(exp(w)), relu(scale(w, 3.0)))
        for storage in runtime.memory.live():
            if storage.call is not None:
                assert runtime.memory.evict(storage, Action.DROP)
        with launches(runtime) as names:
            y.sum().backward()
        assert {"exp", "tanh", "relu"} <= set(names)
        t, e = np.tanh(np.exp(0.5)), np.exp(0.5)
        assert np.allclose(w.grad.numpy(), (1 - t * t) * e * 1.5 + 3 * t, rtol=1e-6)


# Pressure -----------------------------------------------------------------------------------------------------------
def test_a_replay_at_the_smallest_budget_ends():
    """Arena of 3 tensors and additions that need all of it; every input of every addition has to be made again.

    If what a replay has made could be dropped before it is used, two inputs would evict each other forever.
    """
    with small_runtime(units=3, policy="recompute") as runtime:
        x = leaf(runtime)
        values = [shift(x, float(i)) for i in range(6)]
        sums = [add(a, b) for a in values for b in values]
        total = sums[0]
        for s in sums[1:]:
            total = add(total, s)
        with launches(runtime) as names:
            for i, s in enumerate(sums):
                assert value(s) == 2.0 + i // 6 + i % 6
        assert len(names) <= 36 * 3  # an addition and its two inputs
        assert value(total) == sum(2.0 + i // 6 + i % 6 for i in range(36))
        runtime.check()


def test_values_made_in_a_replay_may_be_swapped_while_it_lasts():
    """The same, on a tree: its left half waits while the right half is made. Without lineage for it, only the host
    can take it."""
    with small_runtime(units=3, policy="recompute") as runtime:
        x = leaf(runtime)

        def tree(depth: int) -> Tensor:
            return add(tree(depth - 1), tree(depth - 1)) if depth else shift(x, 1.0)

        root = tree(5)
        drop(runtime, root)
        swapped = runtime.stats().swapped_out_bytes
        with launches(runtime) as names:
            assert value(root) == 64.0
        assert len(names) == 63
        assert runtime.stats().swapped_out_bytes > swapped
        assert used_units(runtime) <= 3 and not runtime.memory.state.protected


def test_a_replay_that_does_not_fit_says_so_and_leaves_everything_as_it_was():
    """Arena of 8 units: x (1) and a (2) fit, and so does the wide value (4) between; not beside 4 that may not go."""
    with small_runtime(units=8, policy="recompute", host_memory=0) as runtime:
        x = leaf(runtime)
        wide = concat([x, x, x, x], axis=0)
        a = wide.narrow(0, 0, 128).contiguous()
        del wide
        drop(runtime, a)
        obstacle = runtime.tensor(np.ones(64 * 5, np.float32))  # a leaf, and no host memory
        with pytest.raises(OutOfMemory, match="concat"):
            a.numpy()
        runtime.check()
        assert a.status is RECOMPUTE and not runtime.memory.state.protected and used_units(runtime) == 6
        del obstacle
        assert set(a.numpy()) == {1.0}


def _two_ends(runtime: Runtime) -> tuple[Tensor, Tensor, Tensor]:
    """A leaf, and two dropped values of one chain of four that the program has freed."""
    x = leaf(runtime)
    chain = shift(shift(shift(shift(x, 1.0), 1.0), 1.0), 1.0)
    ends = shift(chain, -4.0), shift(chain, -3.0)
    del chain
    for end in ends:
        drop(runtime, end)
    return x, *ends


def test_a_replay_keeps_what_another_dropped_value_is_computed_from():
    with small_runtime(units=16, policy="msps") as runtime, runtime.iteration():
        _, one, two = _two_ends(runtime)
        with launches(runtime) as names:
            assert value(one) == 1.0
        assert len(names) == 5 and used_units(runtime) == 3  # x, one, and the end of the chain
        with launches(runtime) as names:
            assert value(two) == 2.0
        assert len(names) == 1 and used_units(runtime) == 4  # until memory asks for it


def test_what_a_replay_keeps_for_another_goes_first_when_memory_is_short():
    with small_runtime(units=4, policy="msps") as runtime:
        _, one, two = _two_ends(runtime)
        assert value(one) == 1.0 and used_units(runtime) == 3
        more = leaf(runtime, units=2)
        assert used_units(runtime) == 4 and one.status is IN and runtime.stats().swapped_out_bytes == 0
        del more
        with launches(runtime) as names:
            assert value(two) == 2.0
        assert len(names) == 5
        runtime.check()


def test_what_a_replay_keeps_for_another_ends_with_the_iteration():
    with small_runtime(units=16, policy="msps") as runtime:
        with runtime.iteration():
            x, one, two = _two_ends(runtime)
            assert value(one) == 1.0 and used_units(runtime) == 3
            del two
        assert used_units(runtime) == 2 and x.status is one.status is IN
        assert not runtime.memory.state.shared
        runtime.check()


def test_without_a_host_a_replay_drops_what_it_needs_later_and_computes_it_again():
    """Arena of 4 units: x and three values. In the replay of s three values wait when the fourth is computed."""
    with small_runtime(units=4, policy="recompute", host_memory=0) as runtime:
        x = leaf(runtime)
        one = shift(x, 1.0)
        two = shift(one, 1.0)
        three = shift(two, 1.0)
        s = add(shift(three, 1.0), three)  # 5 + 4
        del three
        s = add(s, two)
        del two
        s = add(s, one)
        del one
        drop(runtime, s)
        with launches(runtime) as names:
            assert value(s) == 14.0
        assert len(names) == 7 + 1  # of the seven calls one twice: the oldest value
        runtime.check()
        assert not runtime.memory.state.protected and not runtime.memory.state.awaited


def test_a_replay_that_fails_between_two_outputs_leaves_neither_half_made():
    """Arena of 11: x (8), y (2), index (1). With one unit taken, y finds its place again and index does not."""
    with small_runtime(units=11, policy="recompute", host_memory=0) as runtime:
        x = images(runtime, 2, 4, 8, 8)
        y, index = apply_all(MAX_POOL2D, x, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
        expected = y.numpy()
        drop(runtime, y)
        drop(runtime, index)
        obstacle = leaf(runtime)
        with pytest.raises(OutOfMemory, match="max_pool2d"):
            y.numpy()
        assert y.status is index.status is RECOMPUTE and used_units(runtime) == 9
        del obstacle
        assert y.numpy().tobytes() == expected.tobytes() and index.status is IN


def test_a_value_whose_leaf_is_gone_is_an_error_that_says_so():
    with small_runtime() as runtime:
        middle = shift(full((64,), 1.0), 1.0)
        y = exp(middle)
        drop(runtime, y)
        middle.storage.call = None  # what no program can do: lineage is broken
        drop_bytes = middle.storage
        del middle
        runtime.memory.keeper.deallocate(drop_bytes)
        with pytest.raises(Unrecoverable, match=r"tensor 2 \(exp, float32\[64\]\) was freed, and the tensors that"):
            y.numpy()
        with pytest.raises(Unrecoverable, match="was freed"), minidl.no_grad():
            scale(y, 2.0)
        runtime.check()


def test_nothing_from_a_call_that_cannot_be_replayed_is_dropped():
    with small_runtime() as runtime:
        x = leaf(runtime)  # bytes that crossed the link once
        assert missing_calls(x.storage) is None
        assert runtime.memory.evict(x.storage, Action.DROP) and x.status is OUT


def full_on_both_sides(then):
    """Arena of 3 tensors, full of leaves; x is on the host, where another one has no room: neither can change places.
    Then relu(x)."""
    with small_runtime(units=24, host_memory=15 * UNIT) as runtime:
        s = leaf(runtime, 1.0, units=8)
        x = scale(s, 2.0)
        swap_out(runtime, x)
        p, q = leaf(runtime, 2.0, units=8), leaf(runtime, 3.0, units=8)
        assert x.status is OUT and all(each.status is IN for each in (s, p, q)) and used_units(runtime) == 24
        then(runtime, s, x)
        runtime.check()
        for each, value in ((p, 2.0), (q, 3.0)):
            assert set(each.numpy().ravel()) == {value}


def test_what_cannot_come_back_from_a_full_host_to_a_full_device_is_computed_again():
    def then(runtime, s, x):
        with launches(runtime) as names:
            y = relu(x)
        assert names == ["scale", "relu"]
        for each, value in ((y, 2.0), (x, 2.0), (s, 1.0)):
            assert set(each.numpy().ravel()) == {value}

    full_on_both_sides(then)


def test_what_cannot_be_computed_again_stays_on_the_full_host():
    def then(runtime, s, x):
        fill_(s, 5.0)
        with pytest.raises(OutOfMemory, match="host memory is full"):
            relu(x)
        assert x.status is OUT and set(s.numpy().ravel()) == {5.0}

    full_on_both_sides(then)


def test_what_has_no_price_leaves_a_full_host_before_an_allocation_fails(monkeypatch):
    """Arena of 2 tensors, host of 2: u and x are there, both made from s, and nobody can say what x would cost."""
    with small_runtime(units=16, host_memory=16 * UNIT) as runtime:
        s = leaf(runtime, 1.0, units=8)
        made = []
        for factor in (2.0, 3.0):
            made.append(scale(s, factor))
            swap_out(runtime, made[-1])
        u, x = made
        price = neighbourhood.price
        monkeypatch.setattr(neighbourhood, "price", lambda storage: None if storage is x.storage else price(storage))
        others = [leaf(runtime, 4.0, units=8), leaf(runtime, 5.0, units=8)]
        assert u.status is RECOMPUTE and x.status is OUT  # one of the leaves has its place
        others.append(leaf(runtime, 6.0, units=8))
        assert x.status is RECOMPUTE
        with pytest.raises(OutOfMemory, match="host memory is full"):
            leaf(runtime, 7.0, units=8)
        runtime.check()
        del others[0]
        assert [value(each) for each in (x, u, s, *others)] == [3.0, 2.0, 1.0, 5.0, 6.0]
