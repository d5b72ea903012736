"""Ranks that part, or fail, end together: none waits for ever, and none adds up what does not belong together."""

import numpy as np
import pytest
from rank_programs import outcomes

from minidl import nn
from minidl.ranks import RanksDiverged

pytestmark = pytest.mark.usefixtures("one_thread")


def step(runtime, layer, batch):
    x = layer(runtime.tensor(np.ones((batch, 4), "float32")))
    x.sum().backward()
    return layer.weight.grad.numpy()


def test_a_rank_with_another_batch_is_seen_by_all():
    def work(runtime, rank):
        runtime.tensor(np.ones((9 if rank == 1 else 6, 4), "float32")).numpy()

    raised = outcomes(3, work)
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert ("rank 0 is at gather_ranks of float32[6, 4], rows (2, 2, 2), in iteration 0, exchange 0, a batch of 6, "
            "rank 1 at gather_ranks of float32[9, 4], rows (3, 3, 3), in iteration 0, exchange 0") in str(raised[0])


def test_a_rank_with_another_batch_is_seen_by_all_in_a_sum_of_one_shape():
    """Gradients have one shape for any number of examples."""
    def work(runtime, rank):
        layer = nn.Linear(4, 3)
        step(runtime, layer, 6)
        step(runtime, layer, 9 if rank == 1 else 6)

    raised = outcomes(3, work)
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert "exchange 1, a batch of 6, rank 1 at sum_ranks" in str(raised[0])


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


@pytest.mark.parametrize("steps", [0, 2])
def test_a_rank_that_stops_earlier_than_the_others_is_seen_by_all(steps):
    def work(runtime, rank):
        layer = nn.Linear(4, 3)
        for _ in range(steps if rank == 1 else 3):
            with runtime.iteration():
                step(runtime, layer, 6)

    raised = outcomes(3, work)
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert f"rank 1 at the end of the run, iteration {steps} after 0 exchanges" in str(raised[0])


def test_a_rank_that_leaves_out_an_exchange_like_the_next_one_is_seen_at_the_end_of_the_iteration():
    def work(runtime, rank):
        layer = nn.Linear(4, 3)
        with runtime.iteration():
            step(runtime, layer, 6)
            if rank != 2:
                step(runtime, layer, 6)
        raise AssertionError("the iteration has ended")

    raised = outcomes(3, work)
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert "rank 2 at the end of iteration 0 after" in str(raised[0])


def test_ranks_go_on_after_an_iteration_only_if_it_failed_on_all():
    def work(runtime, rank, *, failing):
        layer = nn.Linear(4, 3)
        for number in range(3):
            try:
                with runtime.iteration():
                    step(runtime, layer, 6)
                    if number == 1 and rank in failing:
                        raise ArithmeticError("too much")
            except ArithmeticError:
                pass

    assert outcomes(2, lambda runtime, rank: work(runtime, rank, failing=(0, 1))) == [None, None]
    raised = outcomes(2, lambda runtime, rank: work(runtime, rank, failing=(1,)))
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert "after a failed iteration (ArithmeticError)" in str(raised[0])


def test_what_a_rank_computes_for_itself_is_its_own():
    def work(runtime, rank):
        layer = nn.Linear(4, 3)
        for _ in range(3):
            with runtime.iteration():
                step(runtime, layer, 6)
            if rank == 0:
                with runtime.iteration():
                    assert runtime.tensor(np.ones((5, 4), "float32")).shape == (5, 4)
                    assert (layer.weight * 2.0).numpy().shape == (3, 4)

    assert outcomes(2, work) == [None, None]
