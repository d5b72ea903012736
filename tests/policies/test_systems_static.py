"""Systems that plan from the network: for each one decision of the original, worked out by hand.

In ``layers(...)`` call i is layer i, reads x[i - 1] and makes x[i]; of n layers call n + 1 begins the backward pass,
and call 2n + 2 - i is layer i's gradient, which reads x[i - 1]. Calls take 10 s, tensors have a unit, which the link
carries in a second.
"""

import pytest
from made_networks import AMPLE, LINK, call, layers, network, units

from minidl.errors import Unsuitable
from minidl.plan.plan import NO_PLAN, Action, Plan
from minidl.plan.trace import Trace, TraceTensor
from minidl.policies import create
from minidl.policies.capuchin.hybrid import NANO
from minidl.policies.literature.autoswap import AutoSwap, AutoSwapAoa, AutoSwapDoa, AutoSwapWdoa, PeakGap
from minidl.policies.literature.chen import Segments, segments
from minidl.policies.literature.g10 import Migration
from minidl.policies.literature.griewank import snapshots
from minidl.policies.literature.network import IterationNetwork
from minidl.policies.literature.openai import checkpoints
from minidl.policies.literature.static import outcome_of, peak_bytes
from minidl.policies.literature.superneurons import SuperNeurons
from minidl.policies.literature.swapadvisor import Gene, GeneticSearch, SwapAdvisor
from minidl.policies.literature.swapping import Swap
from minidl.policies.literature.tflms import Tflms, chain_rule, direct_order, levels

SIX = ("conv2d", "relu", "conv2d", "max_pool2d", "conv2d", "relu")  # x0 ... x6; backward from call 7 on
OUT, DROP = Action.SWAP_OUT, Action.DROP


def test_the_feature_maps_of_a_chain_are_its_inputs_of_layers():
    made = network(*SIX)
    assert made.turn == 7 and list(made.convolutions) == [1, 3, 5]
    assert [(m.tensor_id, m.last, m.back) for m in made.maps] == [(i, i + 1, 13 - i) for i in range(6)]
    assert [m.can_drop for m in made.maps] == [False, True, True, True, True, True]  # data come from outside


# vDNN ----------------------------------------------------------------------------------------------------------------
def test_vdnn_offloads_inputs_of_convolutions_beside_their_layers_and_waits_at_their_ends():
    """x0, x2 and x4: each copy starts before its layer, so it is asked for after the call before; the wait is after the
    layer's call. Backward call 8 (of layer 6) brings x4 back, 9 (of 5) x2; 10 (of the pool) looks no further than
    layer 3, a convolution; 11 brings x0. Each is asked for after the call before, and waited for after its own."""
    plan = create("vdnn-conv").choose(network(*SIX), LINK, AMPLE)
    assert plan.evictions == {(t, n): OUT for t in (0, 2, 4) for n in (1, 2)}
    assert plan.prefetches == {(6, 2): (4,), (5, 3): (2,), (3, 3): (0,)}  # by calls 7, 8 and 10
    assert plan.waits == {(0, 2), (2, 2), (4, 2), (5, 3), (4, 3), (2, 3)}  # by calls 1, 3, 5 and 8, 9, 11


def test_vdnn_all_offloads_all_inputs_but_those_of_activations_and_of_the_last_layer():
    made = network(*SIX)
    assert {t for t, _ in create("vdnn-all").choose(made, LINK, AMPLE).evictions} == {0, 2, 3, 4}
    again = create("vdnn++").choose(made, LINK, AMPLE)
    assert {t for t, _ in again.evictions} == {0, 2, 3, 4} and not again.waits


def test_vdnn_join_offloads_what_is_joined_with_a_shortcut_and_not_two_branches_that_are_joined():
    """x1 is joined with x0, which a convolution reads; x3 with x5, which none does."""
    forward = [("upload", (), 0), ("conv2d", (0,), 1), ("batch_norm_add_relu", (1, 0), 2), ("conv2d", (2,), 3),
               ("conv2d", (2,), 4), ("batch_norm", (4,), 5), ("batch_norm_add_relu", (3, 5), 6), ("conv2d", (6,), 7)]
    backward = [("cross_entropy_grad", (7,), 8), ("conv2d_grad", (6, 8), 9), ("batch_norm_grad", (3, 9), 10),
                ("batch_norm_grad", (4, 9), 11), ("conv2d_grad", (2, 10, 11), 12), ("batch_norm_grad", (1, 12), 13),
                ("conv2d_grad", (0, 13), 14)]
    calls = tuple(call(op, reads, (makes,), 10.0) for op, reads, makes in forward + backward)
    made = IterationNetwork.of(Trace(calls, {t: TraceTensor(t, 1 << 20, False) for t in range(15)}), LINK)
    offloaded = {name: {t for t, _ in create(name).choose(made, LINK, AMPLE).evictions}
                 for name in ("vdnn-conv", "vdnn-join", "vdnn-all")}
    assert offloaded == {"vdnn-conv": {0, 2}, "vdnn-join": {0, 1, 2}, "vdnn-all": {0, 1, 2, 3, 4}}


def test_vdnn_sees_a_convolution_that_is_the_first_call():
    rows = [("conv2d", (0,), 1), ("relu", (1,), 2), ("max_pool2d", (2,), 3), ("cross_entropy_grad", (3,), 4),
            ("max_pool2d_grad", (2, 4), 5), ("relu_grad", (1, 5), 6), ("conv2d_grad", (0, 6), 7)]
    calls = tuple(call(op, reads, (makes,), 10.0) for op, reads, makes in rows)
    made = IterationNetwork.of(Trace(calls, {t: TraceTensor(t, 1 << 20, False) for t in range(8)}), LINK)
    assert list(made.convolutions) == [0]
    create("vdnn-all").choose(made, LINK, AMPLE)


def test_vdnn_dyn_takes_the_first_of_nothing_convolutions_and_all_that_fits():
    """Backward needs 8 units at its start, for 6 maps, x6 and its gradient. A layer has X, Y and two gradients."""
    made = network(*SIX)
    plans = [create(name).choose(made, LINK, AMPLE) for name in ("vdnn-conv", "vdnn-all")]
    assert [peak_bytes(made, plan) >> 20 for plan in (NO_PLAN.plan, *plans)] == [8, 5, 4]
    chosen = [create("vdnn-dyn").choose(made, LINK, units(device)) for device in (8, 7.5, 4.5)]
    assert chosen == [NO_PLAN.plan, *plans]
    with pytest.raises(Unsuitable, match="cannot run this in 3.5 MiB: its largest layer needs 4.0 MiB for X, Y and"):
        create("vdnn-dyn").plan(layers(*SIX), LINK, units(3.5))
    with pytest.raises(Unsuitable, match="cannot run this in 4.5 MiB: under its plan an iteration needs 5.0 MiB"):
        create("vdnn-conv").plan(layers(*SIX), LINK, units(4.5))
    with pytest.raises(Unsuitable, match="cannot run this in 3.0 MiB of host memory"):
        create("vdnn-all").plan(layers(*SIX), LINK, units(8, host=3))


# Checkpointing -------------------------------------------------------------------------------------------------------
def test_openai_speed_keeps_what_convolutions_make():
    plan = create("openai-speed").choose(network(*SIX), LINK, AMPLE)  # of x1 to x5; the data stay, too
    assert plan.evictions == {(2, 2): DROP, (4, 2): DROP} and not plan.prefetches


def test_openai_memory_keeps_every_fourth_of_fifteen_values_that_cut_the_network():
    """x1 to x15 are read backward and cut it: N = B = 15. 15 > ceil(sqrt 15) = 4, so every ceil(15 / 3.87) = 4-th is
    kept, from the fifth on."""
    assert checkpoints(network(*["relu"] * 16)) == [5, 9, 13]
    assert checkpoints(network(*["relu"] * 3)) == [1, 2]  # no more than ceil(sqrt 2): all of them


def test_a_mask_that_all_layers_read_hinders_no_cut_as_it_is_made_of_the_data_alone():
    """1 is made of the data 0. Layers i = 1..3 read it, and make i + 1 of i with the parameter -1; layer 1 reads 0."""
    def cuts(lasting: bool) -> list[int]:
        calls = [call("upload", (), (0,), 1.0), call("scale", (0,), (1,), 1.0),
                 *(call("linear", (i if i > 1 else 0, 1, -1), (i + 1,), 1.0) for i in (1, 2, 3)),
                 call("cross_entropy_grad", (4,), (5,), 1.0, (4,)),
                 *(call("linear_grad", (i if i > 1 else 0, 1, -1, 8 - i), (9 - i,), 1.0) for i in (3, 2, 1))]
        return checkpoints(IterationNetwork.of(Trace(tuple(calls), {
            i: TraceTensor(i, 1 << 20, i < 0 and lasting) for i in range(-1, 9)}), LINK))
    assert cuts(lasting=True) == [2, 3]
    assert cuts(lasting=False) == [1]  # nothing is known to be a parameter


def test_chen_keeps_every_fourth_of_fifteen_values_and_greedily_one_of_three():
    """isqrt(14) + 1 = 4. Greedily at a threshold of 2.5 units: x0, x1 and x2 are 3, so x2 is kept, then x5, ..."""
    made = network(*["relu"] * 16)
    kept = set(range(1, 16)) - {t for t, _ in create("chen-sqrt").choose(made, LINK, AMPLE).evictions}
    assert kept == {4, 8, 12}
    assert segments(made, 5 << 19) == Segments(frozenset({2, 5, 8, 11, 14}), 5 << 20, 3 << 20)
    assert segments(made, 0).kept == frozenset(range(1, 16))  # every one exceeds nothing at all


def test_treeverse_sets_its_first_snapshots_at_binomial_distances():
    """16 steps: 4 snapshots, and 3 sweeps, as C(6, 4) = 15 < 16 <= C(7, 4) = 35. The first is at ceil(3 x 16 / 7) = 7,
    then ceil((3 x 7 + 3 x 16) / 6) = 12, ceil((2 x 12 + 3 x 16) / 5) = 15, and ceil((15 + 3 x 16) / 4) = 16 is the
    end. 15 values cut a chain of 16 layers."""
    assert snapshots(16) == [7, 12, 15] and snapshots(1) == []
    plan = create("griewank").choose(network(*["relu"] * 16), LINK, AMPLE)
    assert set(range(1, 16)) - {t for t, _ in plan.evictions} == {7, 12, 15}


# SuperNeurons --------------------------------------------------------------------------------------------------------
def test_superneurons_recomputes_what_is_cheap_and_offloads_the_earliest_checkpoints_until_all_fits():
    """x2 (of a ReLU) and x4 (of a pool) are dropped: of 8 units 6 are left at the turn. For 5 the data must leave."""
    trace = layers(*SIX)
    dropped = {(2, 2): DROP, (4, 2): DROP}
    assert SuperNeurons().plan(trace, LINK, units(7)).plan.evictions == dropped
    assert SuperNeurons().plan(trace, LINK, units(5)).plan.evictions == {**dropped, (0, 2): OUT}


# TFLMS ---------------------------------------------------------------------------------------------------------------
def test_tflms_swaps_the_longest_edges_that_it_must():
    """Calls 0 to 13 have levels 1 to 14, so x[i]'s edge from call i + 1 to 13 - i has 12 - 2i. Two units must go from
    8: those of 12 and 10 levels."""
    made = network(*SIX)
    level = levels(made)
    assert level == list(range(1, 15))
    assert {t for t, _ in Tflms().choose(made, LINK, units(6)).evictions} == {0, 1}
    swap = Swap(1, 2, 12, 1.0)  # x1, from call 2 to call 12
    assert [direct_order(level, swap, ahead) for ahead in (1, 2, 10)] == [11, 10, 2]
    # Forward, call 3 came one level after call 2: its x3 is read by call 10. Two levels: x4, by call 9.
    assert [chain_rule(made, level, swap, ahead) for ahead in (1, 2)] == [10, 9]


# AutoSwap ------------------------------------------------------------------------------------------------------------
def test_autoswap_orders_candidates_by_each_score_and_by_the_sum_of_their_ranks():
    """Ranks by DOA, AOA and WDOA: a 0, 2, 1; b 2, 0, 2; c 1, 1, 0; in all 3, 4 and 2."""
    a, b, c = PeakGap(0, 1, 5.0, 1.0, 3.0), PeakGap(1, 1, 4.0, 9.0, 2.0), PeakGap(2, 1, 4.5, 5.0, 9.0)
    assert AutoSwap().order([a, b, c]) == [c, a, b]
    assert AutoSwapDoa().order([a, b, c]) == [a, c, b]
    assert AutoSwapAoa().order([a, b, c]) == [b, c, a]
    assert AutoSwapWdoa().order([a, b, c]) == [c, a, b]


def test_autoswap_takes_the_longest_absence_until_the_load_is_within_the_limit():
    """The load is 8 units at calls 7 and 8; x0 is away longest (calls 1 to 13), then x1. For 6 units both go. The copy
    of x0 back must start by 129 s, with call 12, after call 11; that of x1 by 119 s, with call 11, after call 10."""
    plan = AutoSwapDoa().plan(layers(*SIX), LINK, units(6)).plan
    assert plan.evictions == {(0, 2): OUT, (1, 2): OUT}
    assert plan.prefetches == {(3, 3): (1,), (2, 3): (0,)}


# FlashNeuron and G10 -------------------------------------------------------------------------------------------------
def test_flashneuron_offloads_from_the_front_until_the_rest_fits_beside_what_is_reserved():
    """A gradient's call needs 3 units. 6 maps and these are 9: for 6 units three must leave."""
    plan = create("flashneuron").choose(network(*SIX), LINK, units(6))
    assert plan.evictions == {(t, 2): OUT for t in (0, 1, 2)}


def test_g10_takes_the_period_that_relieves_most_and_brings_it_back_at_the_last_safe_moment():
    """4 layers: 6 units at calls 5 and 6, so a line of 5 is exceeded by 1 from 50 to 70 s. x0 and x1 relieve all of it.
    x2, which call 7 wants at 70 s, counts as away until 69.5 s, so of whole calls for 10 s; x3, away from 50.5 to 59.5
    s, for none. x0's copy back takes the last second before call 9 at 90 s, so it starts with call 8, after call 7."""
    made = network(*["relu"] * 4)
    unit = 1 << 20
    migration = Migration(made, 5 * unit)
    gaps = {m.tensor_id: m.gap for m in made.maps}
    assert [migration.benefit(gaps[t]) // unit for t in range(4)] == [20 * NANO, 20 * NANO, 10 * NANO, 0]
    assert migration.chosen() == [(7, Swap(0, 1, 9, 1.0))]


@pytest.mark.parametrize("policy", ["vdnn-all", "openai-memory", "tflms", "flashneuron"])
def test_a_pass_without_gradients_has_no_plan(policy):
    trace = layers(*SIX)
    assert create(policy).plan(Trace(trace.calls[:7], trace.tensors), LINK, units(8)) == NO_PLAN


# SwapAdvisor ---------------------------------------------------------------------------------------------------------
def test_swapadvisor_swaps_from_the_pool_that_is_empty_what_is_used_again_last():
    """x0 and x1 have 2 units, all else has 1. Pools of 3 blocks of 2 units and of 6 of 1: 12 units. x0 and x1 find
    blocks; x2 to x6 and the loss's gradient take the 6 small ones, and x6 is freed by call 7. Call 8 wants one for the
    next gradient and finds that of x6; so nothing leaves. With 4 small blocks the fifth, x6 by call 6, takes that of x2
    (used again by call 11), the gradient by call 7 that of x3; call 8 finds x6's, and x3, back for call 10, that of
    x5."""
    made = network(*SIX, sizes=(2, 2))
    search = GeneticSearch(made, units(12))
    assert [size >> 20 for size in search.sizes] == [1, 2]

    def swapped(small, large):
        chromosome = (Gene(True, small), Gene(True, large * 2.0))
        search._pool_bytes = (small + 2 * large) << 20
        assert search.pools(chromosome) == {1 << 20: (1 << 20, small), 2 << 20: (2 << 20, large)}
        mode = search.planned(chromosome)
        return {m.tensor_id for m in made.maps if mode[m.gap]}
    assert swapped(6, 3) == set()
    assert swapped(4, 3) == {2, 3}
    one_pool = (Gene(False, 1.0), Gene(True, 1.0))
    search._pool_bytes = 12 << 20
    assert search.pools(one_pool) == dict.fromkeys((1 << 20, 2 << 20), (2 << 20, 6))  # blocks of the larger size
    assert search.planned((Gene(True, 1.0), Gene(True, 11.0))) is None  # one small block is too few for a call


def test_swapadvisor_finds_pools_that_fit_and_the_same_ones_again():
    trace = layers(*SIX)
    plan = SwapAdvisor().plan(trace, LINK, units(6)).plan
    assert plan.evictions and plan == SwapAdvisor().plan(trace, LINK, units(6)).plan
    assert outcome_of(network(*SIX), plan, units(6)).excess <= 0
    assert SwapAdvisor().plan(trace, LINK, units(9)) == NO_PLAN


# Waits in the model --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("waits", "seconds"), [(set(), 140), ({(0, 2)}, 170), ({(1, 2)}, 160), ({(1, 1)}, 170),
                                                ({(5, 1)}, 140)])
def test_the_model_of_an_iteration_waits_where_a_plan_does(waits, seconds):
    """14 calls of 10 s; x0 takes 30 s each way, out after call 1 and back beside others. Waiting after call 1 costs all
    30 s, after call 2 (which reads x1) what is left of them, after call 5, when the copy has ended, nothing."""
    made = network(*SIX, sizes=(30,))
    plan = Plan({(0, 2): OUT}, waits=frozenset(waits))
    assert outcome_of(made, plan, AMPLE).seconds == seconds
