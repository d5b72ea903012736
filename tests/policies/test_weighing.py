"""On-demand eviction that weighs recomputation: what a tensor costs to make again, and which one leaves first."""

import random
import weakref

import pytest
from networks import UNIT, Training, drop, leaf, small_runtime, swap_out, train

from bench.support.on_demand import Front, random_branch, seconds, speeds, three_lengths
from bench.support.steps import run
from minidl import Runtime
from minidl.device import profiles
from minidl.errors import OutOfMemory
from minidl.memory import neighbourhood
from minidl.memory.lineage import missing_calls
from minidl.memory.storage import IN, OUT, RECOMPUTE
from minidl.ops.elementwise import add, exp, mul, tanh
from minidl.plan.costs import Costs
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import Pressure, Residency
from minidl.policies import POLICIES
from minidl.policies.auto.policy import Auto
from minidl.policies.dtr_swap import DtrSwap

MB = 10 ** 6
LINK = Costs(out_seconds_per_byte=1e-10, in_seconds_per_byte=1e-10, latency_seconds=0.0)  # 1 MB: 0.1 ms each way


def value(tensor):
    return float(tensor.numpy()[0])


def resident(tensor_id, *, seconds=None, idle=0, nbytes=MB, host_valid=False):
    return Residency(tensor_id, nbytes, 0, 1, 1, False, host_valid, seconds, idle)


def victims(*residents, host=1000 * MB, free=1000 * MB, costs=LINK):
    return [tuple(e) for e in DtrSwap().victims(residents, Pressure(MB, host, free, costs))]


# The policy ---------------------------------------------------------------------------------------------------------
def test_what_is_sooner_made_again_than_copied_both_ways_is_dropped_and_the_rest_swapped():  # both ways: 0.2 ms
    assert victims(resident(1, seconds=1.9e-4), resident(2, seconds=2.1e-4), resident(3)) == [
        (1, Action.DROP), (2, Action.SWAP_OUT), (3, Action.SWAP_OUT)]


def test_with_a_full_host_what_cannot_be_priced_is_as_dear_as_all_the_others_together():
    """It will be dropped, whatever the policy asks for: few large tensors rather than many small ones. 2 + 3 ms."""
    assert victims(resident(1, seconds=2e-3), resident(2, seconds=3e-3), resident(3), resident(4, nbytes=3 * MB),
                   free=0) == [(4, Action.SWAP_OUT), (1, Action.DROP), (2, Action.DROP), (3, Action.SWAP_OUT)]


def test_a_valid_copy_on_the_host_leaves_the_way_in_to_pay():
    assert victims(resident(1, seconds=1.9e-4, host_valid=True), resident(2, seconds=1.9e-4)) == [
        (1, Action.SWAP_OUT), (2, Action.DROP)]


def test_latency_is_paid_for_each_copy():
    slow = Costs(1e-10, 1e-10, latency_seconds=1e-3)  # 2.2 ms both ways
    assert victims(resident(1, seconds=2.1e-3), costs=slow) == [(1, Action.DROP)]
    assert victims(resident(1, seconds=2.3e-3), costs=slow) == [(1, Action.SWAP_OUT)]
    assert victims(resident(1, seconds=1.2e-3, host_valid=True), costs=slow) == [(1, Action.SWAP_OUT)]  # 1.1 ms


def test_of_two_alike_the_one_that_has_been_idle_for_longer_leaves_first():
    assert [t for t, _ in victims(resident(1, seconds=1e-5, idle=3), resident(2, seconds=1e-5, idle=4))] == [2, 1]


def test_seconds_count_by_the_byte_and_against_staleness():
    """1e-5 s for 1 MB against 3e-5 s for 4 MB: the larger is cheaper by the byte. Idle 0 and 1 is once and twice."""
    assert [t for t, _ in victims(resident(1, seconds=1e-5), resident(2, seconds=3e-5, nbytes=4 * MB))] == [2, 1]
    assert [t for t, _ in victims(resident(1, seconds=1e-5), resident(2, seconds=1.9e-5, idle=1))] == [2, 1]
    assert [t for t, _ in victims(resident(1, seconds=1e-5), resident(2, seconds=2.1e-5, idle=1))] == [1, 2]


def test_the_fuller_the_host_the_dearer_it_is_to_swap():
    """0.2 ms at an empty host, 0.4 ms at one that is half full; with no byte left all is dropped that can be."""
    tensor = resident(1, seconds=3e-4)
    assert victims(tensor) == [(1, Action.SWAP_OUT)]
    assert victims(tensor, free=500 * MB) == [(1, Action.DROP)]
    assert victims(tensor, resident(2), host=0, free=0) == [(1, Action.DROP), (2, Action.SWAP_OUT)]


def test_the_order_of_equals_does_not_depend_on_the_order_in_which_they_are_listed():
    tensors = [resident(n, seconds=1e-5) for n in range(20)]
    assert victims(*tensors) == victims(*reversed(tensors))


def test_auto_evicts_like_it_where_there_is_no_plan_and_the_papers_policies_swap_from_the_front():
    draw = random.Random(0)
    facts = [Residency(n, draw.randrange(1, 9) * MB, 0, draw.randrange(100), 100, False, draw.random() < 0.3,
                       draw.choice([None, 1e-3 * draw.random()]), draw.randrange(200)) for n in range(50)]
    pressure = Pressure(2 * MB, 100 * MB, 30 * MB, LINK)
    weighed = DtrSwap().victims(facts, pressure)
    assert POLICIES["auto"]().victims(facts, pressure) == POLICIES["dtr-swap"]().victims(facts, pressure) == weighed
    swapped = POLICIES["passive"]().victims(facts, pressure)
    assert swapped != weighed and {e.action for e in swapped} == {Action.SWAP_OUT}
    for name in ("capuchin", "capuchin-swap", "capuchin-recompute"):
        assert POLICIES[name]().victims(facts, pressure) == swapped and not POLICIES[name].weighs_recomputation


# Prices -------------------------------------------------------------------------------------------------------------
def chain(runtime, length):
    """x -> tanh -> tanh -> ...: each keeps its output for its gradient. One call takes ``seconds``."""
    x = leaf(runtime, 0.5, requires_grad=True)
    made = [tanh(x)]
    for _ in range(length - 1):
        made.append(tanh(made[-1]))
    [seconds] = {t.storage.call.signature.algorithms[0].seconds for t in made}
    return made, seconds


def calls_of(price, seconds):
    assert price is not None
    assert price / seconds == pytest.approx(round(price / seconds))
    return round(price / seconds)


def test_a_tensor_between_dropped_ones_costs_all_of_them():
    """Of 7 in a row: with 1 and 2 (from 0) and 4 dropped, 3 costs 4 calls, 0 costs 3, 5 costs 2 and 6 itself."""
    with small_runtime(policy="dtr-swap") as runtime:
        made, seconds = chain(runtime, 7)
        drop(runtime, made[4]), drop(runtime, made[1]), drop(runtime, made[2])
        assert [calls_of(neighbourhood.price(made[n].storage), seconds) for n in (0, 3, 5, 6)] == [3, 4, 2, 1]


def test_a_call_that_is_replayed_leaves_its_region():
    with small_runtime(policy="dtr-swap") as runtime:
        made, seconds = chain(runtime, 4)
        drop(runtime, made[1]), drop(runtime, made[2])
        made[1].numpy()
        assert [calls_of(neighbourhood.price(made[n].storage), seconds) for n in (0, 1, 3)] == [1, 2, 2]
        made[2].numpy()
        assert {calls_of(neighbourhood.price(t.storage), seconds) for t in made} == {1}
        drop(runtime, made[1]), drop(runtime, made[2])  # and joins again
        assert [calls_of(neighbourhood.price(made[n].storage), seconds) for n in (0, 3)] == [3, 3]


def test_what_was_freed_above_a_tensor_is_part_of_its_price():
    with small_runtime(policy="dtr-swap") as runtime:
        x = leaf(runtime, 0.5, requires_grad=True)
        total = add(x, x)  # no gradient needs its value
        y = tanh(total)
        first, second = (t.storage.call.signature.algorithms[0].seconds for t in (total, y))
        assert neighbourhood.price(y.storage) is None  # nobody keeps what it starts from, which still has its bytes
        del total
        assert neighbourhood.price(y.storage) == pytest.approx(first + second)


def test_a_leaf_and_what_starts_from_something_that_nobody_keeps_have_no_price():
    with small_runtime(policy="dtr-swap") as runtime:
        x = leaf(runtime, 0.5)
        y = exp(x)
        z = exp(y)  # no gradient: when y goes, z could only be made from x
        assert neighbourhood.price(x.storage) is None and neighbourhood.price(z.storage) is None
        assert neighbourhood.price(y.storage) == y.storage.call.signature.algorithms[0].seconds


def test_what_was_written_in_place_has_no_readers_with_a_price():
    from minidl.ops.update import fill_

    with small_runtime(policy="dtr-swap") as runtime:
        x = leaf(runtime, 0.5)
        y = exp(x)
        fill_(x, value=1.0)
        assert neighbourhood.price(y.storage) is None and missing_calls(y.storage) is None


@pytest.mark.parametrize("seed", range(20))
def test_after_random_drops_a_price_is_that_of_all_missing_calls_that_hang_together(seed):
    """Against a walk over the whole graph, up and down from each tensor that is there."""
    draw = random.Random(seed)
    with small_runtime(policy="dtr-swap", units=400) as runtime:
        x = leaf(runtime, 0.5, requires_grad=True)
        made = [tanh(x), tanh(x)]
        for _ in range(25):
            made.append(tanh(draw.choice(made)) if draw.random() < 0.3 else mul(draw.choice(made), draw.choice(made)))
        for tensor in draw.sample(made, 15):
            drop(runtime, tensor)
        calls = {id(call): call for t in made for call in _lineage(t.storage)}
        missing = {key for key, call in calls.items() if all(o() is None or o().status is RECOMPUTE
                                                             for o in call.outputs)}
        for tensor in made:
            storage = tensor.storage
            if storage.status is RECOMPUTE or neighbourhood.price(storage) is None:
                continue
            together, seen = [storage.call], {id(storage.call)}
            for call in together:  # grows
                for other in calls.values():
                    touches = (any(s.base.call is other for s in call.inputs)
                               or any(s.base.call is call for s in other.inputs))
                    if touches and id(other) in missing and id(other) not in seen:
                        seen.add(id(other))
                        together.append(other)
            replay_seconds = sum(call.signature.algorithms[0].seconds for call in together)
            assert neighbourhood.price(storage) == pytest.approx(replay_seconds)


def _lineage(storage):
    """All calls that a storage comes from."""
    found, wanted = {}, [storage]
    while wanted:
        call = wanted.pop().base.call
        if call is not None and id(call) not in found:
            found[id(call)] = call
            wanted.extend(call.inputs)
    return found.values()


def test_prices_keep_no_record_alive():
    with small_runtime(policy="dtr-swap") as runtime:
        made, _ = chain(runtime, 5)
        drop(runtime, made[1]), drop(runtime, made[3])
        assert neighbourhood.price(made[2].storage) is not None
        records = [weakref.ref(t.storage) for t in made] + [weakref.ref(t.storage.call) for t in made]
        del made
        assert not [r for r in records if r() is not None]
        runtime.check()


# In the engine ------------------------------------------------------------------------------------------------------
class Noting(DtrSwap):
    """Keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def victims(self, resident, pressure):
        self.asked.append((list(resident), pressure))
        return super().victims(resident, pressure)


def test_a_policy_is_told_how_long_tensors_are_idle_and_what_the_host_has_left():
    """An arena of 4 units full of a, b, c and d, made in this order by calls 1 to 4. The 5th reads b, the 6th makes e.
    When a is wanted again, 1 of 8 units of the host is taken."""
    policy = Noting()
    with small_runtime(units=4, policy=policy, host_memory=8 * UNIT) as runtime:
        a, b, c, d = (leaf(runtime, float(n)) for n in range(4))
        b.numpy()
        e = leaf(runtime, 9.0)
        facts, pressure = policy.asked[0]
        assert [(r.tensor_id, r.idle_calls) for r in facts] == [
            (t.storage.tensor_id, idle) for t, idle in ((a, 6 - 1), (b, 6 - 5), (c, 6 - 3), (d, 6 - 4))]
        assert (pressure.nbytes, pressure.host_bytes, pressure.host_free_bytes) == (UNIT, 8 * UNIT, 8 * UNIT)
        assert pressure.costs == profiles.get("cpu").link_costs
        assert a.status is OUT, "nobody has used it for longer"
        assert [float(t.numpy()[0]) for t in (a, b, c, d, e)] == [0.0, 1.0, 2.0, 3.0, 9.0]
        assert policy.asked[1][1].host_free_bytes == 7 * UNIT


def test_a_replay_uses_what_it_reads_and_makes():
    """Else what has just been computed again, and what it was computed from, would be the stalest of all."""
    policy = Noting()
    with small_runtime(units=6, policy=policy) as runtime:
        made, _ = chain(runtime, 4)  # with x 5 units
        for _ in range(5):
            made[3].numpy()
        drop(runtime, made[1])
        runtime.memory.replay(made[1].storage)
        runtime.memory.state.kept.clear()  # what came by in replays would leave before the policy is asked
        rest = [leaf(runtime), leaf(runtime)]
        facts = {r.tensor_id: r.idle_calls for r in policy.asked[0][0]}
        idle = [facts[t.storage.tensor_id] for t in made if t.storage.tensor_id in facts]
        assert len(idle) == 4 and idle[0] == idle[1] < idle[2], "0 was read and 1 made; 2 was read before that"
        assert rest


def test_tensors_too_small_to_matter_are_not_weighed_unless_all_must_go():
    """4096 units are wanted: a unit is less than a 1024th of them, 8 are not."""
    policy = Noting()
    with small_runtime(units=4104 + 20, policy=policy) as runtime:
        small = [leaf(runtime) for _ in range(20)]
        large = [leaf(runtime, units=512) for _ in range(8)]
        big = leaf(runtime, units=4096)
        assert {r.tensor_id for r in policy.asked[0][0]} == {t.storage.tensor_id for t in large}
        del big, large
        everything = leaf(runtime, units=4124)
        assert len(policy.asked[-1][0]) >= 20 and all(t.storage.block is None for t in small)
        del everything


def test_of_very_many_tensors_the_stalest_of_each_magnitude_of_price_are_weighed():
    """1,000 of a unit that can only be swapped: the first is wanted least. All are weighed where all must go."""
    policy = Noting()
    with small_runtime(units=1000, policy=policy) as runtime:
        many = [leaf(runtime) for _ in range(1000)]
        more = [leaf(runtime) for _ in range(3)]
        assert [[r.tensor_id for r in facts] for facts, _ in policy.asked] == [[t.tensor_id] for t in many[:3]]
        before = len(policy.asked)
        del more
        everything = leaf(runtime, units=1000)
        assert sum(len(facts) for facts, _ in policy.asked[before:]) == 997
        del everything


def test_of_the_windows_between_free_blocks_the_one_that_is_cheapest_to_make_again_is_emptied(monkeypatch):
    """xx..bb..dd: the 4 free units are wanted in one piece; moving is made dear. Copies of b and d cost the same."""
    with small_runtime(units=10, policy="dtr-swap") as runtime:
        x = leaf(runtime, 0.5, units=2)
        first = leaf(runtime, units=2)
        b = exp(x)
        second = leaf(runtime, units=2)
        d = exp(x)
        del first, second
        monkeypatch.setattr(neighbourhood, "price", {b.storage: 1.0, d.storage: 1e-9}.get)
        monkeypatch.setattr(runtime.device, "move_seconds", lambda nbytes: 1.0)
        wide = leaf(runtime, units=4)
        assert (b.status, d.status) == (IN, RECOMPUTE)
        assert runtime.stats().moved_bytes == runtime.stats().swapped_out_bytes == 0
        assert wide.storage.block.offset == 6 * UNIT


def test_what_a_replay_under_way_needs_has_no_price():
    """8 units, all taken; to make the product of three sources again room is needed, and the third is not read yet."""
    policy = Noting()
    with small_runtime(units=8, policy=policy) as runtime:
        x = leaf(runtime, 0.5, requires_grad=True)
        sources = [tanh(x) for _ in range(3)]
        first = mul(sources[0], sources[1])
        second = mul(first, sources[2])
        third = mul(second, x)  # keeps the second for its gradient
        drop(runtime, first), drop(runtime, second)
        rest = [leaf(runtime) for _ in range(3)]
        second.numpy()
        prices = {r.tensor_id: r.recompute_seconds for r in policy.asked[0][0]}
        assert prices[sources[2].storage.tensor_id] is None
        assert prices[third.storage.tensor_id] is not None
        assert rest


@pytest.mark.parametrize("policy", ["dtr-swap", "passive"])
def test_on_a_full_host_what_can_be_made_again_gives_way_to_what_cannot(policy):
    """The only unit of the host holds y, made from the leaf x, which has to leave now."""
    with small_runtime(units=2, policy=policy, host_memory=UNIT) as runtime:
        x = leaf(runtime, 0.0)
        y = exp(x)
        swap_out(runtime, y)
        everything = leaf(runtime, units=2)
        assert (x.status, y.status) == (OUT, RECOMPUTE)
        runtime.check()
        del everything
        assert value(y) == 1.0 and value(x) == 0.0


def test_of_what_the_host_holds_the_cheapest_to_make_again_is_given_up_first(monkeypatch):
    with small_runtime(units=8, policy="dtr-swap", host_memory=3 * UNIT) as runtime:
        x = leaf(runtime, 0.0)
        made = [exp(x) for _ in range(3)]
        for tensor in made:
            swap_out(runtime, tensor)
        prices = dict(zip([t.storage for t in made], (3e-3, 1e-3, 2e-3), strict=True))
        monkeypatch.setattr(neighbourhood, "price", prices.get)
        swap_out(runtime, x)
        assert [t.status for t in made] == [OUT, RECOMPUTE, OUT]


def test_a_gradient_is_swapped_rather_than_made_again_from_the_whole_iteration():
    """ResNet-152 at 2,300 in 64 GiB of host memory: gradients that wait at a join are dropped if only their own call
    counts, and then come back through hundreds of calls whose inputs are gone."""
    replays = run("resnet152", 2300, "dtr-swap", steps=1).last.recompute_seconds
    unmanaged = 23.0  # seconds a step takes at this batch with unlimited memory
    assert replays < unmanaged


@pytest.mark.default(model=["vgg16"])
@pytest.mark.parametrize(("model", "batch", "times"), [("resnet50", 1014, 2.0), ("vgg16", 350, 1.3)])
def test_on_demand_it_is_faster_than_swapping_from_the_front(model, batch, times):
    passive, weighed = (run(model, batch, policy, steps=1).images_per_second for policy in ("passive", "dtr-swap"))
    assert weighed > times * passive


@pytest.mark.slow
def test_a_plan_is_carried_out_no_slower_over_it_than_over_swapping_from_the_front():
    """ResNet-50 at 1,440: the plan does not find all in one piece. Blocks are moved then; dropped for a piece, what is
    cheap to make again would have to come back from what the plan has evicted meanwhile."""
    front, weighing = (speeds(policy(rounds=0), "resnet50", 1440)[-1] for policy in (Front, Auto))
    assert weighing > 0.99 * front


@pytest.mark.default(program=[three_lengths])
@pytest.mark.parametrize("program", [three_lengths, random_branch])
def test_a_program_that_leaves_its_plans_runs_faster_over_it(program):
    budget = "3GiB" if program is three_lengths else None
    front, weighing = (seconds(policy(rounds=0), program, budget) for policy in (Front, Auto))
    assert weighing < 0.75 * front


def test_a_host_without_memory_is_no_reason_to_fail_while_lineage_can_make_everything_again():
    with small_runtime(units=6, policy="dtr-swap", host_memory=0) as runtime:
        made, _ = chain(runtime, 30)
        assert made[17].numpy().tobytes() == made[17].numpy().tobytes()
        runtime.check()
    with small_runtime(units=6, policy="passive", host_memory=0) as runtime, pytest.raises(OutOfMemory):
        [leaf(runtime) for _ in range(7)]


def test_evictions_are_plain_pairs():
    assert victims(resident(7)) == [Eviction(7, Action.SWAP_OUT)]


def test_what_survives_an_iteration_keeps_nothing_of_the_calls_that_were_missing_in_it(monkeypatch):
    noted = []
    lost = neighbourhood.lost
    monkeypatch.setattr(neighbourhood, "lost", lambda storage: (noted.append(storage.tensor_id), lost(storage))[1])
    demand = train("mlp", steps=1).demand
    with Runtime("cpu:virtual", policy="dtr-swap", host_memory=1 << 20,
                 memory_budget=max(demand.unmanaged_peak_bytes // 2, demand.largest_op_bytes)) as runtime:
        training = Training(runtime, "mlp", "momentum")
        for _ in range(4):
            noted.clear()
            training.iterate()
            assert noted  # something was missing, and weights had been read by it
            assert all(storage.missing_readers is None for storage in runtime.memory.live())
