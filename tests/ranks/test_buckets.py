"""Gradients are summed in buckets: their borders follow from the network alone, and no bit from the borders."""

from unittest.mock import patch

import numpy as np
import pytest
from rank_programs import outcomes, together, train
from test_bits import SHORT, slices

from minidl import Runtime, nn, optim
from minidl.parts.slicing.buckets import BUCKET_BYTES, Buckets
from minidl.parts.slicing.exchange import MOST_OF_A_BUCKET
from minidl.parts.slicing.slicer import slicer_of
from minidl.ranks import RanksDiverged, modelled

pytestmark = pytest.mark.usefixtures("one_thread")


def sums(width, layers, *, ranks=2, budget="1GiB", policy="none", cut=1):
    """The bytes of the tensors of each sum between ranks, in a step of linear layers."""
    with Runtime("sim:p100", memory_budget=budget, policy=policy, ranks=modelled(ranks), slices=cut) as runtime:
        runtime.keeps_trace = True
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with runtime.iteration():
                optimizer.zero_grad()
                x = model(runtime.tensor(None, shape=(48, width)))
                x.backward(x.detach())
                del x
                optimizer.step()
        trace = runtime.last_trace
    return [[trace.tensors[x].nbytes for x in call.outputs] for call in trace.calls if call.op == "sum_ranks"]


def test_a_bucket_is_full_with_so_many_bytes_or_tensors():
    weight, bias = 256 * 256 * 4, 256 * 4
    found = sums(256, 20)
    assert sum(map(len, found)) == 40 and len(found) == 5  # four layers fill one
    assert all(BUCKET_BYTES <= sum(sizes) < BUCKET_BYTES + weight and sorted(set(sizes)) == [bias, weight]
               for sizes in found)
    assert sorted(map(len, sums(512, 9))) == [1] * 9 + [9]  # a weight has a MiB and is sent alone; biases share one
    assert [len(sizes) for sizes in sums(4, 40)] == [MOST_OF_A_BUCKET, 80 - MOST_OF_A_BUCKET]


def test_borders_follow_from_the_network_alone():
    expected = sums(256, 20)
    assert sums(256, 20, ranks=4) == expected
    assert sums(256, 20, policy="passive", budget="13MiB") == expected
    assert sums(256, 20, cut=6) == expected


@pytest.mark.parametrize("cut", [3, 6])
@pytest.mark.parametrize("full", [1, 3000, 1 << 30])
def test_buckets_change_no_bit(full, cut):
    with patch.object(Buckets, "full_bytes", full):
        found = together(3, lambda ranks: train("lstm", ranks=ranks, slices=cut, batches=SHORT))
    assert found == [slices("lstm", cut)] * 3


def test_a_rank_with_other_borders_is_seen_by_all():
    def work(runtime, rank):
        if rank == 1:
            slicer_of(runtime.executor)._queue._buckets.full_bytes = 1
        layer = nn.Linear(4, 3)
        layer(runtime.tensor(np.ones((6, 4), "float32"))).sum().backward()

    raised = outcomes(3, work)
    assert all(isinstance(error, RanksDiverged) and "tensors" in str(error) for error in raised)


def test_gradients_of_a_failed_iteration_wait_for_no_exchange():
    def work(ranks):
        with Runtime("cpu", memory_budget=1 << 22, ranks=ranks) as runtime:
            layer, run = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), runtime.executor.run
            called = []

            def fails(op, *rest, **others):
                called.append(op.name)
                if called.count("linear_wgrad") == 2:  # the first gradient is in a bucket
                    raise ArithmeticError("no gradient")
                return run(op, *rest, **others)

            found = []
            for number in range(3):
                for parameter in layer.parameters():
                    parameter.grad = None
                try:
                    with runtime.iteration(), patch.object(runtime.executor, "run", fails if number == 1 else run):
                        layer(runtime.tensor(np.full((6, 4), number + 1.0, "float32"))).sum().backward()
                except ArithmeticError:
                    pass
                if number == 1:
                    assert not slicer_of(runtime.executor)._queue._buckets._open
                    continue
                found.append(layer[1].bias.grad.numpy().tolist())
            return found

    assert together(2, work) == [[[6.0] * 3] * 2] * 2
