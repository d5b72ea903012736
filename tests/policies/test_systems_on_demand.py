"""Systems that decide when memory is short: for each one decision of the original, worked out by hand; and what the
engine does for them that it does for no other."""

import re

import pytest
from made_networks import layers
from networks import drop, leaf, small_runtime, used_units
from networks import train as trained

import train
from minidl.errors import OutOfMemory
from minidl.memory import neighbourhood
from minidl.memory.storage import IN, OUT, SWAPPING_OUT
from minidl.ops import exp, mul, tanh
from minidl.plan.costs import Costs
from minidl.plan.plan import Action, Plan, Proposal
from minidl.plan.policy import OnDemand, Pressure, Regime, Residency
from minidl.policies import create
from minidl.policies.literature.megengine import MB, worth
from minidl.policies.literature.on_demand import distances
from minidl.policies.passive import Passive

COSTS = Costs(1.0, 1.0, 0.0)


def resident(tensor_id, nbytes=1, *, offset=0, idle=0, seconds=None, persistent=False, replays=0, before=0, after=0):
    return Residency(tensor_id, nbytes, offset, 0, 0, persistent, False, seconds, idle, replays, before, after)


def victims(policy, tensors, nbytes=1, *, call=0, trace=None):
    found = create(policy).victims(tensors, Pressure(nbytes, 100, 100, COSTS, call, trace))
    assert len({action for _, action in found}) <= 1
    return [tensor_id for tensor_id, _ in found]


# References ----------------------------------------------------------------------------------------------------------
def test_belady_swaps_what_is_used_again_last_and_until_the_sequence_is_known_what_was_used_longest_ago():
    """Layers 1 to 3; call 4 turns, 5, 6 and 7 read x2, x1 and x0. At call 4: 1, 2 and 3 away."""
    trace = layers("relu", "relu", "relu")
    tensors = [resident(2, idle=9), resident(0, idle=1), resident(1, idle=3)]
    assert distances(tensors, trace, 4) == {2: 1, 1: 2, 0: 3}
    assert victims("od-belady", tensors, call=4, trace=trace) == [0, 1, 2]
    assert victims("od-belady", tensors, call=4) == [2, 1, 0]
    # At call 7 x2 and x1 are not used again; what outlives the iteration is, by call 0 + 8 calls an iteration.
    assert distances([resident(1), resident(0, persistent=True)], trace, 8) == {1: 16, 0: 8 - 8 + 0}


def test_by_size_the_smallest_class_that_is_large_enough_goes_first_unless_it_is_wanted_soon():
    """4 wanted. Of 8 layers x[i] is read by call 17 - i: at call 9 x0 is 8 away, x7 1. With all nearer than 80, 40, 20
    and 10 calls the distance is halved to 5: x0 to x3 are as far. Classes: 4 (x3, x7), 6 (x1), then 3 (x0) and 2."""
    trace = layers(*["relu"] * 8)
    tensors = [resident(t, nbytes) for t, nbytes in ((0, 3), (1, 6), (2, 2), (3, 4), (7, 4))]
    assert {r.tensor_id: distances([r], trace, 9)[r.tensor_id] for r in tensors} == {0: 8, 1: 7, 2: 6, 3: 5, 7: 1}
    assert victims("od-size", tensors, 4, call=9, trace=trace) == [3, 1, 0, 2, 7]


def test_msps_drops_what_saves_most_a_second_and_nothing_that_cannot_be_made_again():
    tensors = [resident(0, 10, seconds=5.0), resident(1, 30, seconds=6.0), resident(2, 9), resident(3, 1, seconds=0.3)]
    assert victims("msps", tensors) == [1, 3, 0]  # 5, 3.3 and 2 bytes a second


def test_lots_fall_alike_for_the_same_question_and_otherwise_for_others():
    tensors = [resident(t) for t in range(20)]
    first = victims("random", tensors, call=3)
    assert first == victims("random", tensors[::-1], call=3) and sorted(first) == list(range(20))
    assert first != victims("random", tensors, call=4) != victims("random", tensors, 2, call=4)


def test_keep_all_keeps_what_no_gradient_needs_until_the_gradient_is_taken():
    """y = x + x needs neither for its gradient, tanh its own output: with x, y and z alive 3 units, and after the
    handle on y has gone 2; all 3 where everything is kept."""
    for policy, kept in (("none", 2), ("keep-all", 3)):
        with small_runtime(policy=policy) as runtime:
            x = leaf(runtime, 0.5, requires_grad=True)
            y = x + x
            z = tanh(y)
            del y
            assert used_units(runtime) == kept, policy
            z.sum().backward()
            del z
            assert used_units(runtime) == 2  # x and its gradient


def test_keep_all_changes_no_bit_and_needs_more():
    plain, kept = trained("mlp"), trained("mlp", policy="keep-all")
    assert plain.state == kept.state and kept.stats.peak_bytes > plain.stats.peak_bytes


# DTR -----------------------------------------------------------------------------------------------------------------
def test_the_evicted_neighbourhood_is_what_a_tensor_needs_and_what_needs_it():
    """a and b come from x, y from both. With a and y missing, b costs its own call and y's: a is neither above nor
    below it. The class of missing calls that hang together has a, too. And alone it costs one call."""
    with small_runtime(policy="dtr") as runtime:
        x = leaf(runtime, 0.5, requires_grad=True)
        a, b = tanh(x), tanh(x)
        y = mul(a, b)
        drop(runtime, a), drop(runtime, y)
        one, product = (t.storage.call.signature.algorithms[0].seconds for t in (b, y))
        walks = neighbourhood.Walks()
        found = [price(b.storage) for price in walks.prices().values()]
        assert found == pytest.approx([2 * one + product, one + product, one, one])
        z = exp(b)
        drop(runtime, b)
        second = z.storage.call.signature.algorithms[0].seconds
        assert walks.exact(z.storage) == pytest.approx(second + one)  # y is not below z
        assert walks.own(x.storage) is None


def test_dtr_drops_the_least_cost_for_bytes_and_staleness_and_swaps_nothing():
    """h: 6 / (2 x 3) = 1, 6 / (4 x 1) = 1.5, 1 / (1 x 2) = 0.5."""
    tensors = [resident(0, 2, idle=2, seconds=6.0), resident(1, 4, seconds=6.0), resident(2, 1, idle=1, seconds=1.0),
               resident(3, 99, idle=99)]
    for policy in ("dtr", "dtr-eqclass", "dtr-local", "dtr-ignore"):
        assert victims(policy, tensors) == [2, 0, 1]
        assert not create(policy).regime.swaps


def test_where_nothing_is_swapped_what_cannot_be_made_again_is_an_error_that_blames_no_host():
    with small_runtime(units=4, policy="dtr") as runtime:
        kept = [leaf(runtime) for _ in range(4)]
        with pytest.raises(OutOfMemory, match="policy 'dtr' let none of them go$"):
            leaf(runtime, units=2)
        assert all(t.status is IN for t in kept)


def test_where_deallocation_is_ignored_bytes_stay_until_they_are_evicted():
    """x, a and b are 3 units, of which a's handle has gone. 4 of 6 are wanted then: without a they are free; with it,
    something leaves, and what is dropped is made again when it is read."""
    for policy, used in (("dtr", 2), ("dtr-ignore", 3)):
        with small_runtime(units=6, policy=policy) as runtime:
            x = leaf(runtime, 0.5)
            a = exp(x)
            b = exp(a)
            del a
            assert used_units(runtime) == used
            rest = leaf(runtime, units=4)
            assert used_units(runtime) <= 6 and (b.status is IN or policy == "dtr-ignore")
            del rest
            assert b.numpy()[0] == pytest.approx(5.2003, abs=1e-3)  # e to the e to the 0.5
            runtime.check()


# MegEngine and Coop --------------------------------------------------------------------------------------------------
def test_megengine_counts_the_holes_beside_a_tensor_and_makes_replays_dearer():
    """(2 + 0.001) / ((1 + 3) x (4 + 0.001)) = 0.12503; after 1,000 replays 1.0001 ^ 1000 = 1.10516 times that."""
    once = resident(0, MB, idle=4, before=MB, after=2 * MB)
    assert worth(once, 2.0) == pytest.approx(0.12503, abs=1e-5)
    assert worth(once._replace(replays=1000), 2.0) == pytest.approx(1.10516 * 0.12503, abs=1e-5)
    beside = [resident(0, 2 * MB, seconds=1.0, idle=1), resident(1, MB, seconds=1.0, idle=1, after=4 * MB),
              resident(2, MB - 1, seconds=1e-9, idle=9)]
    assert victims("megengine", beside) == [1, 0, 2]  # the hole makes up for the size; below 1 MB comes last


def test_coop_evicts_the_cheapest_window_of_neighbours():
    """Addresses 0 to 10: a (2 bytes, cost 1), b (2, 1), [in use, 1], c (1, 3), a hole of 1, d (3, 2). 4 bytes are
    wanted: a and b cost 2, c with the hole and d 5, d with the hole 2, too, and the lower address wins; were a dearer,
    d would go alone."""
    b, c = resident(1, 2, offset=2, seconds=1.0), resident(2, 1, offset=5, seconds=3.0, after=1)
    d = resident(3, 3, offset=7, seconds=2.0, before=1)
    assert victims("coop", [d, c, b, resident(0, 2, seconds=1.0)], 4) == [0, 1, 3, 2]
    assert victims("coop", [d, c, b, resident(0, 2, seconds=1.5)], 4)[0] == 3
    assert victims("coop", [d, c, b, resident(0, 2, seconds=1.5)], 5)[:2] == [2, 3]  # across the hole: 1 + 1 + 3


class InOnePiece(OnDemand):
    """Swaps by address, from the low end."""

    name = "in one piece"
    regime = Regime(one_piece=True)

    def victims(self, resident, pressure):
        from minidl.plan.plan import Eviction
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in sorted(resident, key=lambda r: r.offset)]


def test_victims_leave_until_what_is_wanted_is_free_in_one_piece_and_nothing_is_moved():
    """abcd with b gone: 2 units are wanted, and 1 is free. With a there are 2 in one piece."""
    with small_runtime(units=4, policy=InOnePiece()) as runtime:
        a, b, c, d = (leaf(runtime, float(n)) for n in range(4))
        order = sorted((a, b, c, d), key=lambda t: t.storage.block.offset)
        gone = order.pop(1)
        assert [t for t in (a, b, c, d) if t is gone]
        del a, b, c, d, gone
        wide = leaf(runtime, units=2)
        assert [t.status for t in order] == [OUT, IN, IN] and runtime.stats().moved_bytes == 0
        assert wide.storage.block.offset == 0


# Waiting for copies --------------------------------------------------------------------------------------------------
class Once(Passive):
    """Swaps the first result out when it has been made, with a wait for the copy or without."""

    plans = True

    def __init__(self, waits):
        self.waits = waits

    def plan(self, trace, costs, limits):
        [large] = trace.calls[0].outputs
        return Proposal(Plan({(large, 1): Action.SWAP_OUT}, waits=frozenset({(large, 1)} if self.waits else ())))


@pytest.mark.parametrize("waits", [False, True])
def test_a_plan_that_waits_lets_nothing_run_before_its_copies_have_ended(waits):
    with small_runtime(policy=Once(waits)) as runtime:
        x, small = leaf(runtime, units=1000), leaf(runtime)
        for number in range(4):
            with runtime.iteration():
                stalled = runtime.device.stall_seconds()
                y = x + x
                last = number == 3
                assert not last or y.storage.status is (OUT if waits else SWAPPING_OUT)
                small + small
                landed = runtime.device.clock.finish_time(1, y.storage.copied_out) if last else 0.0
                assert not last or (runtime.device.clock.ready[0] >= landed) is waits
                assert not last or (runtime.device.stall_seconds() > stalled) is waits
                (y + y).numpy()
                del y


def test_the_largest_batch_under_keep_all_is_refused_by_what_it_keeps(capsys):
    """At 988, where only the gradients' operands are kept, 44.5 MiB would do."""
    assert train.main(["--device", "sim:p100", "--model", "lenet", "--batch", "max", "--steps", "1", "--policy",
                       "keep-all", "--memory-budget", "64MiB"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "largest batch" in line]
    needs, budget = re.findall(r"([\d.]+) MiB", line)
    assert float(needs) >= float(budget) == 64.0, line
