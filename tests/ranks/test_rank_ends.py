"""Ranks that part, or fail, end together: none waits for ever, and none adds up what does not belong together."""

from threading import Thread

import numpy as np
import pytest

from minidl import Runtime, nn
from minidl.ranks import RanksDiverged, threads

pytestmark = pytest.mark.usefixtures("one_thread")


def outcomes(count, work):
    """Return the error of each of several ranks in threads, in rank order; None for a rank without an error."""
    raised = [None] * count

    def go(ranks):
        try:
            with Runtime("cpu", memory_budget=1 << 22, ranks=ranks) as runtime:
                work(runtime, ranks.rank)
        except Exception as error:
            raised[ranks.rank] = error
            ranks.fail()
    workers = [Thread(target=go, args=(ranks,), daemon=True) for ranks in threads(count, patience_s=900.0)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300.0)
    assert not any(worker.is_alive() for worker in workers), "a rank waits for another one"
    return raised


def step(runtime, layer, batch):
    x = layer(runtime.tensor(np.ones((batch, 4), "float32")))
    x.sum().backward()
    return layer.weight.grad.numpy()


def test_a_rank_with_another_batch_is_seen_by_all():
    def work(runtime, rank):
        runtime.tensor(np.ones((9 if rank == 1 else 6, 4), "float32")).numpy()

    raised = outcomes(3, work)
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert ("rank 0 is at gather_ranks of float32[6, 4], rows (2, 2, 2), rank 1 at gather_ranks of float32[9, 4], "
            "rows (3, 3, 3)") in str(raised[0])


def test_a_rank_that_leaves_out_a_layer_is_seen_by_all():
    def work(runtime, rank):
        layers = nn.Linear(4, 4), nn.Linear(4, 3)
        x = layers[0](runtime.tensor(np.ones((6, 4), "float32")))
        (x if rank == 1 else layers[1](x)).sum().backward()
        layers[0].weight.grad.numpy()

    assert all(isinstance(error, RanksDiverged) for error in outcomes(2, work))


def test_an_error_of_one_rank_ends_the_waits_of_the_others():
    def work(runtime, rank):
        layer = nn.Linear(4, 3)
        for number in range(1000):
            step(runtime, layer, 6)
            if rank == 2 and number == 2:
                raise ValueError("no more")

    first, second, third = outcomes(3, work)
    assert isinstance(first, RanksDiverged) and isinstance(second, RanksDiverged) and isinstance(third, ValueError)
    assert "another rank has failed" in str(first)


def test_all_is_well_with_the_same_on_all_ranks():
    def work(runtime, rank):
        assert (step(runtime, nn.Linear(4, 3), 7) == 7).all()  # the sum over all examples

    assert outcomes(3, work) == [None] * 3
