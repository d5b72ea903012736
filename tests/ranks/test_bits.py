"""Training on k ranks has the bits of k slices on one device: losses, parameters, buffers and optimizer states."""

import gc
import sys
from collections import Counter
from functools import cache, partial
from threading import get_ident

import numpy as np
import pytest
from rank_programs import BATCHES, NETWORKS, Outcome, together, train

from minidl import Runtime, UserError, nn
from minidl.parts.slicing.slicer import slicer_of
from minidl.ranks import modelled, threads
from minidl.ranks.consensus import Consensus

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = [("none", 1.0), ("passive", 1.0), ("passive", 0.6), ("passive", 0.4), ("capuchin", 1.0), ("capuchin", 0.6),
         ("capuchin", 0.4), ("auto", 1.0), ("auto", 0.6), ("auto", 0.4)]


SHORT = (10, 7)  # batches, where no plan is made


@cache
def slices(network: str, count: int, batches: tuple[int, ...] = SHORT) -> Outcome:
    return train(network, slices=count, batches=batches)


@pytest.mark.default(network=["resnet20", "lstm"], count=[3], policy=["none"])
@pytest.mark.sampled(count=[4], policy=["passive", "auto"])
@pytest.mark.parametrize("policy, share", CASES)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_ranks_have_the_bits_of_slices(network, count, policy, share):
    batches = SHORT if policy in ("none", "passive") else BATCHES
    found = together(count, partial(_train, network, policy=policy, share=share, batches=batches))
    assert found == [slices(network, count, batches)] * count


def _train(network, ranks, *, batches=SHORT, **options):
    return train(network, ranks=ranks, batches=batches, **options)


@pytest.mark.parametrize("policy, share", [("passive", 0.4)])
def test_ranks_under_pressure_have_the_bits_of_slices(policy, share):
    """As above, in a sample: 10 examples on 3 ranks are 4, 3 and 3."""
    assert together(3, partial(_train, "bert-tiny", policy=policy, share=share)) == [slices("bert-tiny", 3)] * 3


@pytest.mark.parametrize("device", ["cpu:virtual"])
def test_two_ranks_hold_two_of_four_slices_each_with_the_bits_of_four_slices(device):
    found = together(2, partial(_train, "resnet20", device=device, slices=4))
    assert found == [slices("resnet20", 4)] * 2


def test_an_operation_that_needs_the_whole_batch_gets_it_from_all_ranks():
    values = np.arange(30, dtype="float32").reshape(10, 3)

    def work(ranks):
        with Runtime("cpu", memory_budget=1 << 24, ranks=ranks) as runtime:
            x = runtime.tensor(values, dtype=None)
            assert x.shape == (10, 3)  # the program sees the whole batch
            (part,) = x.storage.parts  # and this rank holds its slice
            turned = x.permute(1, 0).numpy()
            return part.meta.shape[0], turned, x.numpy(), slicer_of(runtime.executor).joined["permute"]

    found = together(3, work)
    assert [rows for rows, *_ in found] == [4, 3, 3]
    for _, turned, whole, joined in found:
        assert (turned == values.T).all() and (whole == values).all() and joined == 1


def test_exchanges_are_calls_of_the_trace_and_no_replay_leads_through_one():
    with Runtime("sim:p100", policy="none", ranks=modelled(4), memory_budget="4GiB") as runtime:
        runtime.keeps_trace = True
        make, loss, optimizer_of = NETWORKS["resnet20"]
        model = make()
        optimizer = optimizer_of(model.parameters())
        for step in range(2):
            with runtime.iteration():
                optimizer.zero_grad()
                loss(runtime, model, 8, step).backward()
                optimizer.step()
        calls = [call for call in runtime.last_trace.calls if call.op.endswith("_ranks")]
        ops = Counter(call.op for call in calls)
    parameters = len(list(model.parameters()))
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    # A sum of the gradients between two norms, and of the last ones; two statistics of each norm, and the labels.
    assert ops == {"sum_ranks": norms + 1, "gather_ranks": 2 * norms + 1} and norms > 10
    assert sum(len(call.inputs) for call in calls if call.op == "sum_ranks") == parameters + 1  # and the loss
    assert not any(call.replayable for call in calls)
    assert {call.op for call in calls if call.seconds} == {"gather_ranks"}  # sums run beside the compute stream


def test_ranks_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="each of 2 ranks has as many slices, and 3 slices cannot be shared out so"):
        Runtime("cpu", memory_budget=1 << 20, slices=3, ranks=threads(2)[0])
    with pytest.raises(UserError, match="modelled ranks have no values"):
        Runtime("cpu", memory_budget=1 << 20, ranks=modelled(2))
    with pytest.raises(UserError, match="there are 1 rank or more, not 0"):
        modelled(0)


def test_one_rank_is_no_ranks():
    with Runtime("cpu", memory_budget=1 << 20, ranks=threads(1)[0]) as runtime:
        assert runtime.ranks is None and not runtime.executor.part_keepers


class Late:
    """An object whose destructor would begin an exchange."""

    def __del__(self):
        Consensus(modelled(2)).turn()


def test_no_exchange_begins_in_a_destructor_or_in_garbage_collection(monkeypatch):
    """Python chooses when these run, and does so on each rank at another moment."""
    collecting, begun, turn = set(), [], Consensus.turn

    def noted(self):
        frame, names = sys._getframe(1), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        begun.append("__del__" in names or get_ident() in collecting)
        return turn(self)

    def collects(phase, info):
        (collecting.add if phase == "start" else collecting.discard)(get_ident())
    monkeypatch.setattr(Consensus, "turn", noted)
    before = gc.get_threshold()
    gc.callbacks.append(collects)
    gc.set_threshold(1)
    try:
        together(2, lambda ranks: train("lstm", ranks=ranks, policy="passive", share=0.4, batches=SHORT))
        assert len(begun) > 10 and not any(begun)
        Late()
        assert begun[-1]
        gc.set_threshold(0)
        ring = [Late()]
        ring.append(ring)
        del ring
        gc.collect()
        assert begun[-1]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collects)
