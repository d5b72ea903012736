"""Parameters in shards: the same values as whole ones, under every policy and budget, where whole ones have no room."""

import copy
from itertools import pairwise

import numpy as np
import pytest

import minidl
from minidl import Runtime, nn, optim
from minidl.autograd import no_grad
from minidl.errors import OutOfMemory, ShapeError, UserError
from minidl.nn import functional as F
from minidl.ops import between, concat, copy_, fill_, mul, normal_, permute, reshape, sum, uniform_, upload_
from minidl.parts.sharding.sharder import shard_bounds
from minidl.report.layers import LayerNames
from minidl.runtime import parameter

ROWS, WIDTH = 23, 8
SHARD_BYTES = 200  # 6 rows of 32 bytes: four shards of 5, 6, 6 and 6


class Net(nn.Module):
    """A table that is the last layer's weight, too, and a linear layer whose weight has more rows than shards."""

    def __init__(self) -> None:
        self.table = nn.Embedding(ROWS, WIDTH)
        self.hidden = nn.Linear(3 * WIDTH, 40)
        self.out = nn.Linear(40, ROWS)

    def forward(self, ids):
        rows = self.table(ids)
        hidden = F.relu(self.hidden(reshape(rows, (ids.shape[0], 3 * WIDTH))))
        return self.out(hidden) + F.linear(between(hidden, 1, 0, WIDTH), self.table.weight)


OPTIMIZERS = {"adamw": lambda p: optim.AdamW(p, lr=0.01, decays=lambda x: x.ndim > 1),
              "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "adadelta": optim.Adadelta}


def trained(shard_bytes=None, *, optimizer="adamw", steps=4, **options):
    """All state and the losses after some steps, with clipped gradients."""
    with Runtime(seed=3, shard_bytes=shard_bytes, **options) as runtime:
        net = Net()
        chosen = OPTIMIZERS[optimizer](net.parameters())
        numbers, losses = np.random.default_rng(5), []
        for _ in range(steps):
            with runtime.iteration():
                ids, labels = runtime.tensor(numbers.integers(0, ROWS, (6, 3))), runtime.tensor(
                    numbers.integers(0, ROWS, 6))
                loss = F.cross_entropy(net(ids), labels)
                chosen.zero_grad()
                loss.backward()
                optim.clip_global_norm(net.parameters(), 0.5)
                chosen.step()
                losses.append(loss.item())
            runtime.check()
        return {**net.state_dict(), **chosen.state_dict(), "losses": np.array(losses)}


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shard_bytes", [SHARD_BYTES, 33, "1KiB"])
def test_a_training_in_shards_is_that_of_whole_parameters_to_rounding(shard_bytes, optimizer):
    whole, cut = trained(optimizer=optimizer), trained(shard_bytes, optimizer=optimizer)
    assert whole.keys() == cut.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(cut[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def test_initial_values_are_those_of_whole_parameters():
    assert_same_bits(trained(SHARD_BYTES, steps=0), trained(steps=0))


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("policy", ["passive", "capuchin", "dtr-swap", "lru", "auto"])
def test_the_same_shards_have_the_same_bits_under_every_policy_and_budget(policy, slices):
    expected = trained(SHARD_BYTES, slices=slices)
    for budget in (24 << 10, (12 if slices == 1 else 16) << 10):  # 12 KiB in slices: ten replays a call, for a minute
        assert_same_bits(trained(SHARD_BYTES, slices=slices, policy=policy, memory_budget=budget), expected)


def embedded(shard_bytes, ids):
    with Runtime(shard_bytes=shard_bytes, seed=1) as runtime:
        table = nn.Embedding(ROWS, WIDTH)
        looked_up = table(runtime.tensor(ids))
        (looked_up * looked_up).sum().backward()
        assert table.weight.grad is not None
        return looked_up.numpy(), table.weight.grad.numpy()


def test_a_table_in_shards_gives_the_bits_of_the_whole_and_so_does_its_gradient():
    ids = np.random.default_rng(0).integers(0, ROWS, (4, 9))
    for found, expected in zip(embedded(SHARD_BYTES, ids), embedded(None, ids), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("wrong", [-1, ROWS, ROWS + 40])
def test_rows_that_no_table_has_are_refused_as_by_the_whole_one(wrong):
    errors = []
    for shard_bytes in (None, SHARD_BYTES):
        with pytest.raises(Exception) as caught:
            embedded(shard_bytes, np.array([0, wrong]))
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


@pytest.fixture
def runtime():
    with Runtime(shard_bytes=SHARD_BYTES, seed=2) as made:
        yield made


def a_parameter(values=None, rows=ROWS):
    made = parameter((rows, WIDTH))
    upload_(made, np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH) if values is None else values)
    return made


def test_shards_are_as_few_as_their_size_allows_and_equal_but_for_a_row(runtime):
    bounds = shard_bounds(a_parameter())
    assert [stop - start for start, stop in bounds] == [5, 6, 6, 6]
    assert bounds[0][0] == 0 and bounds[-1][1] == ROWS and all(a[1] == b[0] for a, b in pairwise(bounds))
    assert len(shard_bounds(a_parameter(rows=6))) == 1, "of 192 bytes"
    assert len(shard_bounds(parameter((3, 100)))) == 3, "one row at least"
    assert len(shard_bounds(parameter((1, 100)))) == 1 and len(shard_bounds(parameter((100,)))) == 1


def test_a_parameter_in_shards_is_one_to_its_program(runtime):
    p = a_parameter()
    values = p.numpy()
    assert p.shape == (ROWS, WIDTH) and p.nbytes == ROWS * WIDTH * 4 and p.requires_grad and not p.operation_name
    assert "in 4 shards" in p.storage.named() and "Tensor(" in repr(p)
    np.testing.assert_array_equal(values, np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH))
    np.testing.assert_array_equal(np.from_dlpack(p), values)
    np.testing.assert_array_equal(permute(p, 1, 0).numpy(), values.T)
    np.testing.assert_array_equal(between(p, 0, 6, 10).numpy(), values[6:10])
    np.testing.assert_array_equal(between(p, 0, 2, 20).numpy(), values[2:20])
    np.testing.assert_array_equal(between(p, 1, 2, 5).numpy(), values[:, 2:5])
    np.testing.assert_array_equal(concat([p, p], axis=1).numpy(), np.concatenate([values, values], 1))
    np.testing.assert_array_equal(sum(p, 1).numpy(), values.sum(1))
    assert sum(p).item() == values.sum() and (p * 2 + p).numpy()[-1, -1] == 3 * values[-1, -1]
    other = copy.deepcopy(p)
    fill_(other, 7.0)
    assert p.numpy()[0, 0] == 0 and (other.numpy() == 7).all()
    p.requires_grad = False
    assert not (p * 2).requires_grad


def test_gradients_arrive_whatever_was_done_and_can_be_read_set_and_forgotten(runtime):
    p, x = a_parameter(), runtime.tensor(np.ones((2, ROWS), np.float32))
    weights = np.arange(ROWS, dtype=np.float32)
    (sum(mul(reshape(p, (-1,)), 2.0)) + sum(x @ p)
     + sum(between(p, 0, 3, 4)) + sum(mul(p, runtime.tensor(weights.reshape(-1, 1))))).backward()
    expected = np.full((ROWS, WIDTH), 4.0) + weights[:, None]
    expected[3] += 1
    np.testing.assert_array_equal(p.grad.numpy(), expected)
    p.grad = mul(p.grad, 2.0)
    np.testing.assert_array_equal(p.grad.numpy(), 2 * expected)
    p.grad = runtime.tensor(expected.astype(np.float32))
    np.testing.assert_array_equal(p.grad.numpy(), expected)
    p.grad = None
    assert p.grad is None
    sum(between(p, 0, 0, 2)).backward()
    np.testing.assert_array_equal(p.grad.numpy(), np.repeat([[1.0], [0.0]], [2, ROWS - 2], 0) * np.ones(WIDTH))


def test_random_numbers_are_those_of_the_whole(runtime):
    with Runtime(seed=2):
        whole = [parameter((ROWS, WIDTH)) for _ in range(2)]
        normal_(whole[0], seed=9, mean=1.0, std=2.0)
        uniform_(whole[1], seed=9, low=-3.0, high=5.0)
        expected = [p.numpy() for p in whole]
    cut = [parameter((ROWS, WIDTH)) for _ in range(2)]
    normal_(cut[0], seed=9, mean=1.0, std=2.0)
    uniform_(cut[1], seed=9, low=-3.0, high=5.0)
    for found, value in zip(cut, expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), value)


def test_what_is_written_goes_to_the_shards_or_is_refused(runtime):
    p = a_parameter()
    with no_grad():
        fill_(between(p, 0, 5, 11), -1.0)  # a shard
        copy_(between(p, 1, 0, 1), runtime.tensor(np.full((ROWS, 1), 5.0, np.float32)))
        for view in (between(p, 0, 4, 6), reshape(p, (-1,))):
            with pytest.raises(UserError, match="is a view of a parameter in shards"):
                fill_(view, 3.0)
        with pytest.raises(ShapeError, match=r"data of shape \[23, 7\]"):
            upload_(p, np.zeros((ROWS, 7), np.float32))
        with pytest.raises(ShapeError):
            copy_(p, runtime.tensor(np.zeros((ROWS, 7), np.float32)))
    expected = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    expected[5:11], expected[:, 0] = -1, 5
    np.testing.assert_array_equal(p.numpy(), expected)


def test_parameters_of_another_runtime_are_refused(runtime):
    with Runtime(shard_bytes=SHARD_BYTES):
        other = a_parameter()
    with pytest.raises(UserError, match="belongs to another runtime"):
        sum(other)


def test_state_dicts_do_not_tell_of_shards():
    with Runtime(shard_bytes=SHARD_BYTES, seed=4):
        cut = Net()
        kept = cut.state_dict()
    with Runtime(seed=8):
        whole = Net()
        whole.load_state_dict(kept)
        assert_same_bits(whole.state_dict(), kept)
    with Runtime(seed=8, shard_bytes=33):
        other = Net()
        other.load_state_dict(kept)
        assert_same_bits(other.state_dict(), kept)


def trains_in(budget, shard_bytes, layer, inputs):
    """Two steps of a simulated layer in a budget; the peak."""
    with Runtime("sim:p100", memory_budget=budget, policy="passive", shard_bytes=shard_bytes) as runtime:
        module = layer()
        optimizer = optim.AdamW(module.parameters())
        for _ in range(2):
            with runtime.iteration():
                optimizer.zero_grad()
                module(inputs(runtime)).sum().backward()
                optimizer.step()
        runtime.check()
        return runtime.stats().peak_bytes


LARGE = {
    "VGG's first linear layer, of 392 MiB": (200 << 20, lambda: nn.Linear(25088, 4096),
                                             lambda r: r.tensor(None, shape=(64, 25088))),
    "a table of 3.8 GiB": (1 << 30, lambda: nn.Embedding(250_000, 4096),
                           lambda r: r.tensor(None, shape=(8, 64), dtype=minidl.int64)),
}


@pytest.mark.parametrize("case", LARGE)
def test_what_is_larger_than_the_device_trains_in_shards_and_in_nothing_else(case):
    budget, layer, inputs = LARGE[case]
    assert trains_in(budget, budget // 16, layer, inputs) <= budget
    with pytest.raises(OutOfMemory):
        trains_in(budget, None, layer, inputs)


def test_every_shard_has_its_parameter_s_name(runtime):
    named = LayerNames(Net(), runtime.executor).owned
    assert list(named.values()).count("table.weight") == 4 and len(set(named.values())) == 5


def test_a_layer_larger_than_the_arena_has_the_bits_that_it_has_with_room():
    found = []
    for budget in ("256KiB", "8MiB"):
        with Runtime(memory_budget=budget, policy="passive", shard_bytes="32KiB", seed=6) as runtime:
            layer = nn.Linear(512, 300)  # of 600 KiB
            optimizer = optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
            for step in range(3):
                with runtime.iteration():
                    x = runtime.tensor(np.random.default_rng(step).standard_normal((4, 512), np.float32))
                    optimizer.zero_grad()
                    (layer(x) * layer(x)).sum().backward()
                    optimizer.step()
            runtime.check()
            found.append({**layer.state_dict(), **optimizer.state_dict()})
    assert_same_bits(*found)
