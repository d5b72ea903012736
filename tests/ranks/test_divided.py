"""Ranks that divide optimizer states, or states and gradients, have the bits of slices on one device, and less to keep.

The figures of memory are exact: a rank keeps its rows of each tensor that has a row for each slice.
"""

from functools import partial

import numpy as np
import pytest
from rank_programs import BATCHES, NETWORKS, together, train
from test_bits import SHORT, slices

from minidl import Runtime, UserError, nn, optim
from minidl.cli.app.train import main
from minidl.meta import block_bytes
from minidl.ranks import modelled, threads

pytestmark = pytest.mark.usefixtures("one_thread")
DIVIDES = ["states", "gradients"]


def test_ranks_to_divide_for_are_needed(capsys):
    assert main(["--model", "lenet", "--ranks-divide", "states"]) == 2
    assert "--ranks-divide states is for several ranks: give --ranks mpi or --ranks N" in capsys.readouterr().err


def _train(network, ranks, **options):
    return train(network, ranks=ranks, **options)


@pytest.mark.default(network=["bert-tiny"], count=[3], policy=["passive"])
@pytest.mark.parametrize("policy, share", [("none", 1.0), ("passive", 0.5), ("capuchin", 0.6), ("auto", 0.6)])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("network", ["bert-tiny", *(pytest.param(n, marks=pytest.mark.full)
                                                   for n in NETWORKS if n != "bert-tiny")])
@pytest.mark.parametrize("divide", DIVIDES)
def test_divided_ranks_have_the_bits_of_slices(network, count, policy, share, divide):
    batches = SHORT if policy in ("none", "passive") else BATCHES
    found = together(count, partial(_train, network, policy=policy, share=share, batches=batches), divide)
    assert found == [slices(network, count, batches)] * count


OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.1), "momentum": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(optim.Adam, lr=0.01), "amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "adadelta": partial(optim.Adadelta, lr=0.5)}


def _small(runtime, optimizer_of, *, clips, twice):
    """Train a network with leaves of 7, 5 and 1 rows; return all that training has changed."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = optimizer_of(model.parameters())
    data = np.random.default_rng(3).standard_normal((4, 9, 6)).astype("float32")
    norms = []
    for batch in data:
        with runtime.iteration():
            optimizer.zero_grad()
            for _ in range(1 + twice):
                y = model(runtime.tensor(batch))
                (y * y).mean().backward()
            if clips:
                norms.append(optim.clip_global_norm(model.parameters(), 0.1).numpy().tobytes())
            optimizer.step()
    state = model.state_dict() | optimizer.state_dict()
    return norms, {name: array.tobytes() for name, array in state.items()}


@pytest.mark.default(optimizer=["adam", "rmsprop"])
@pytest.mark.sampled(count=[2])
@pytest.mark.parametrize("count, cut, clips, twice", [(2, 4, False, True), (3, 3, True, False)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("divide", DIVIDES)
def test_every_optimizer_has_its_bits_if_ranks_divide(optimizer, clips, twice, count, cut, divide):
    def work(ranks):
        with Runtime("cpu", memory_budget=1 << 22, ranks=ranks, slices=cut, seed=5) as runtime:
            return _small(runtime, OPTIMIZERS[optimizer], clips=clips, twice=twice)

    with Runtime("cpu", memory_budget=1 << 22, slices=cut, seed=5) as runtime:
        right = _small(runtime, OPTIMIZERS[optimizer], clips=clips, twice=twice)
    assert together(count, work, divide) == [right] * count


def test_a_rank_keeps_its_rows_of_states_and_gradients_alone():
    width, count = 64, 4

    def kept(divide):
        with Runtime("sim:p100", memory_budget="1GiB", policy="none", ranks=modelled(count, divide=divide)) as runtime:
            model = nn.Linear(width, width, bias=False)
            optimizer = optim.Adam(model.parameters())
            states = runtime.stats().used_bytes
            x = model(runtime.tensor(None, shape=(count, width)))
            x.sum().backward()
            del x
            found = runtime.stats().used_bytes
            optimizer.step()
            return states, found - states

    whole = block_bytes(width * width * 4)
    rows = block_bytes(width * width * 4 // count)
    assert kept("nothing") == (3 * whole, whole)
    assert kept("states") == (whole + 2 * rows, whole)
    assert kept("gradients") == (whole + 2 * rows, rows)


@pytest.mark.parametrize("divide, sums", [("nothing", [("sum_ranks", 4)]), ("states", [("sum_ranks", 4)]),
                                          ("gradients", [("sum_ranks", 2), ("sum_rows", 2)])])
def test_sums_leave_rows_and_only_divided_parameters_are_exchanged(divide, sums):
    """The second layer has one row, so it is whole on each of two ranks."""
    with Runtime("sim:p100", memory_budget="1GiB", policy="none", ranks=modelled(2, divide=divide)) as runtime:
        runtime.keeps_trace = True
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        optimizer = optim.Adam(model.parameters())
        with runtime.iteration():
            x = model(runtime.tensor(None, shape=(4, 4)))
            x.backward(x.detach())
            optimizer.step()
        calls = runtime.last_trace.calls
        divided = {p.tensor_id for p in model[0].parameters()}
    assert [(call.op, len(call.inputs)) for call in calls if call.op.startswith("sum_r")] == sums
    exchanged = [set(call.inputs) for call in calls if call.op == "gather_rows_"]
    assert exchanged == ([] if divide == "nothing" else [divided])


@pytest.mark.parametrize("divide", DIVIDES)
def test_a_dry_run_counts_the_rows_and_changes_nothing(divide):
    def work(ranks):
        with Runtime("cpu", memory_budget=1 << 22, ranks=ranks, seed=5) as runtime:
            model = nn.Linear(16, 32)
            optimizer = optim.Adam(model.parameters())

            def step():
                optimizer.zero_grad()
                model(runtime.tensor(np.ones((4, 16), "float32"))).sum().backward()
                optimizer.step()
            first = runtime.dry_run(step).unmanaged_peak_bytes
            step()
            before = model.state_dict() | optimizer.state_dict()
            again = runtime.dry_run(step).unmanaged_peak_bytes
            after = model.state_dict() | optimizer.state_dict()
            return first, again, all((before[name] == after[name]).all() for name in before)

    (first, again, alike), other = together(2, work, divide)
    assert alike and (first, again, alike) == other and again == first
    assert first < together(2, work)[0][0]


@pytest.mark.parametrize("divide", DIVIDES)
def test_states_are_loaded_in_rows_and_gradients_read_whole(divide):
    def work(ranks):
        with Runtime("cpu", memory_budget=1 << 22, ranks=ranks, seed=5) as runtime:
            model = nn.Linear(3, 5)
            optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            values = {name: np.arange(array.size, dtype="float32").reshape(array.shape)
                      for name, array in optimizer.state_dict().items()}
            optimizer.load_state_dict(values)
            found = optimizer.state_dict()
            model(runtime.tensor(np.ones((4, 3), "float32"))).sum().backward()
            return all((found[name] == values[name]).all() for name in values), model.weight.grad.numpy().tolist()

    assert together(2, work, divide) == [(True, [[4.0] * 3] * 5)] * 2


@pytest.mark.parametrize("divide", DIVIDES)
def test_a_sum_over_a_gradient_is_that_of_the_whole_gradient(divide):
    """1e8 + 1 - 1e8 is 1 in the kernel's double precision, and 0 if each rank rounds the sum of its rows."""
    def work(ranks):
        with Runtime("cpu", memory_budget=1 << 22, ranks=ranks) as runtime:
            layer = nn.Linear(1, 3, bias=False)
            y = layer(runtime.tensor(np.ones((3, 1), "float32")))
            y.backward(runtime.tensor(np.array([[1e8, 1, -1e8], [0, 0, 0], [0, 0, 0]], "float32")))
            return layer.weight.grad.sum().item()

    assert together(3, work, divide) == [1.0] * 3


@pytest.mark.parametrize("divide", DIVIDES)
def test_parameters_in_shards_are_divided_too(divide):
    def work(ranks, **options):
        with Runtime("cpu", memory_budget=1 << 22, ranks=ranks, seed=5, shard_bytes=100, **options) as runtime:
            return _small(runtime, OPTIMIZERS["adam"], clips=False, twice=False)

    assert together(2, work, divide) == [work(None, slices=2)] * 2


def test_ranks_divide_nothing_else():
    with pytest.raises(UserError, match="ranks divide nothing, states, gradients, not parameters"):
        threads(2, divide="parameters")
    with pytest.raises(UserError, match="not all"):
        modelled(2, divide="all")
