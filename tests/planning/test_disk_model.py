"""The disk behind host memory as planners see it: who goes there, one transfer at a time, and plans for it."""

import numpy as np
import pytest
from made_networks import layers
from made_traces import UNIT, call, trace_of

from minidl import Runtime, models
from minidl.meta import int64
from minidl.ops import cross_entropy
from minidl.optim import SGD
from minidl.plan.costs import Costs, DiskCosts, Limits
from minidl.planning.expansion import expand
from minidl.planning.problem import SWAP, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.literature.flashneuron import FlashNeuron
from minidl.policies.literature.g10 import Migration
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.swapping import Swap

MIB = 1 << 20


def costs(memory_units, out=6.0, into=12.0):
    """A unit takes a second on the link each way, and so many to the disk and from it."""
    return Costs(1 / UNIT, 1 / UNIT, 0.0, disk=DiskCosts(memory_units * UNIT, out / UNIT, into / UNIT, 0.0))


# Two tensors of a unit are made in a second each, a call of ten seconds comes, and each is read for a second.
AWAY = trace_of([call((), (0,), 1.0), call((), (1,), 1.0), call((), (2,), 10.0), call((0,), (3,), 1.0, (0,)),
                 call((1,), (4,), 1.0, (1,))], [1, 1, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize(("memory", "seconds"), [
    (2, 14.0),  # all is hidden
    # The second one goes to the disk at 2 s, is there at 8 s, and comes back at 20 s.
    (1, 21.0),
    # The first is there at 7 s and back at 19 s; then the disk takes the second one, until 25 s; it is back at 37 s.
    (0, 38.0)])
def test_what_finds_no_room_in_memory_takes_the_disk_s_time_one_after_the_other(memory, seconds):
    facts = problem(AWAY, costs(memory))
    mode = np.full(len(facts.gap_call), SWAP, np.int64)
    assert len(mode) == 2
    found = simulate(facts, Room(10 * UNIT, 1 << 40, 0.0), mode, mode.copy(), NO_NOTES)
    assert found.seconds == pytest.approx(seconds) and found.excess == 0


def test_a_disk_that_is_faster_than_the_link_is_as_slow_as_the_link():
    facts = problem(AWAY, costs(0, out=0.1, into=0.1))
    assert np.array_equal(facts.disk_out_seconds, facts.out_seconds)
    assert np.array_equal(facts.disk_in_seconds, facts.in_seconds)


def test_memory_that_is_given_back_takes_the_next_one():
    # One tensor is away, read and freed before the other one leaves.
    trace = trace_of([call((), (0,), 1.0), call((), (2,), 9.0), call((0,), (3,), 1.0, (0,)), call((), (1,), 1.0),
                      call((), (4,), 9.0), call((1,), (5,), 1.0, (1,))], [1, 1, 1e-3, 1e-3, 1e-3, 1e-3])
    facts = problem(trace, costs(1))
    mode = np.full(len(facts.gap_call), SWAP, np.int64)
    assert simulate(facts, Room(10 * UNIT, 1 << 40, 0.0), mode, mode.copy(), NO_NOTES).seconds == pytest.approx(22.0)


def test_a_tensor_that_leaves_after_a_call_finds_no_room_in_memory_that_the_call_s_last_input_still_has():
    """The program frees an input once the call is over; by then the plan's copies of this call have their place."""
    trace = trace_of([call((), (0,), 1.0), call((), (2,), 9.0), call((0,), (1,), 1.0, (0,)), call((), (3,), 29.0),
                      call((1,), (4,), 1.0, (1,))], [1, 1, 1e-3, 1e-3, 1e-3])
    facts = problem(trace, costs(1))
    mode = np.full(len(facts.gap_call), SWAP, np.int64)
    # The second one leaves at 11 s, to the disk: it comes back in 12 s, and not in one, from 40 s on at the latest.
    steps, out, back, _ = expand(facts, mode, mode.copy(), NO_NOTES)
    assert list(out.spilled) == [False, True] and list(back.spilled) == [False, True]


# Systems --------------------------------------------------------------------------------------------------------------
def network(count, memory_units):
    """A network of so many ReLUs, whose calls take 10 s each."""
    return IterationNetwork.of(layers(*["relu"] * count), costs(memory_units))


@pytest.mark.parametrize(("memory", "after"), [(3, 9), (2, 8)])
def test_flashneuron_starts_what_comes_from_the_disk_as_early_as_that_takes(memory, after):
    """x0, x1 and x2 leave. Call 11 wants x2 at 110 s: a second on the link is for call 10, the disk's 12 for 9."""
    made = network(6, memory)
    plan = FlashNeuron().choose(made, costs(memory), Limits(6 * UNIT, 100 * UNIT))
    assert len(plan.evictions) == 3
    assert plan.prefetches[made.access_of(after)] == (2,)


@pytest.mark.parametrize(("memory", "after", "seconds"), [(1, 7, 1.0), (0, 6, 12.0)])
def test_g10_starts_what_comes_from_the_disk_as_early_as_that_takes(memory, after, seconds):
    """As in ``test_systems_static``: x0 is taken, and call 9 wants it at 90 s; from the disk it starts at 78 s."""
    assert Migration(network(4, memory), 5 * UNIT).chosen() == [(after, Swap(0, 1, 9, seconds))]


def test_g10_has_the_host_s_memory_once():
    migration = Migration(network(4, 1), 4 * UNIT)
    seconds = {swap.tensor_id: swap.in_seconds for _, swap in migration.chosen()}
    assert sorted(seconds.values())[:2] == [1.0, 12.0]


# On the engine --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("host, budget", [(40, 450), (80, 450), (60, 430), (60, 450), (60, 470)])
def test_auto_knows_what_the_disk_takes(host, budget):
    """ResNet-18 at 32 in half of its memory, with a part of the host memory that it wants; both in MiB."""
    with Runtime("sim:p100", memory_budget=budget * MIB, host_memory=host * MIB, spill="/",
                 spill_bytes="2GiB") as runtime:
        model = models.create("resnet18")
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            before = runtime.stats()
            with runtime.iteration():
                images = runtime.tensor(None, shape=(32, 3, 224, 224))
                labels = runtime.tensor(None, shape=(32,), dtype=int64)
                optimizer.zero_grad()
                cross_entropy(model(images), labels).backward()
                optimizer.step()
        grown = runtime.stats().since(before)
        assert runtime.plan is not None and runtime.plan.predicted_seconds == pytest.approx(grown.seconds, rel=0.01)
        assert grown.swapped_out_bytes > 30 * MIB


def test_what_a_copy_takes_by_way_of_the_disk_says_nothing_of_the_link():
    with Runtime("sim:p100", memory_budget=64 * MIB, host_memory=MIB, spill="/", spill_bytes=64 * MIB) as runtime:
        device = runtime.device
        assert device.link_costs.disk == DiskCosts(MIB, 1 / 2e9, 1 / 3e9, 1e-4)
        device.copy_out(((MIB, 32 * MIB),), 0, 32 * MIB)
        assert device.link_seconds_per_byte() == (None, None)
        device.copy_out(((0, MIB),), 0, MIB)
        assert device.link_seconds_per_byte()[0] == pytest.approx(1 / 12.4e9)
