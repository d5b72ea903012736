"""Features that can be switched off: what each does alone, that it changes no bit, and that flags reach the engine."""

from dataclasses import fields

import pytest
from networks import differences, drop, launches, leaf, small_runtime, train

import minidl
from minidl.cli.app.flags import parse
from minidl.memory.storage import IN, RECOMPUTE
from minidl.memory.switches import ALL_ON, Switches
from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.policy import Observation
from minidl.plan.static import with_static_times
from minidl.plan.trace import Trace, TraceCall
from minidl.policies import create
from minidl.policies.passive import Passive

OFF = {name: Switches(**{name: False}) for name in (field.name for field in fields(Switches))}
FLAGS = {"decoupled_swap": "--no-decoupled-swap", "collective": "--no-collective", "feedback": "--no-feedback",
         "measured_times": "--no-measured-times", "fused": "--no-fused"}


def test_everything_is_on_unless_a_flag_says_otherwise():
    assert parse([]).switches == ALL_ON == Switches(True, True, True, True, True)
    assert OFF.keys() == FLAGS.keys()
    for name, flag in FLAGS.items():
        assert parse([flag]).switches == OFF[name] != ALL_ON


# Decoupled swapping --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("switches", "waits"), [(ALL_ON, False), (OFF["decoupled_swap"], True)])
def test_without_decoupled_swapping_a_copy_overlaps_one_call_and_the_next_waits_for_it(switches, waits):
    with small_runtime(switches=switches) as runtime:
        big, small = leaf(runtime, units=1000), leaf(runtime)
        x = big + big
        runtime.memory.allocator.start_swap_out(x.storage)
        landed = runtime.device.clock.finish_time(1, x.storage.copied_out)
        y = small + small
        started = runtime.device.clock.ready[0]
        assert started < landed  # this one runs beside the copy
        y = y + small
        assert (runtime.device.clock.ready[0] > landed) is waits
        assert (runtime.device.stall_seconds() > 0) is waits
        del x, y


# Collective recomputation --------------------------------------------------------------------------------------------
def chain(runtime: minidl.Runtime, units: int = 1) -> list[minidl.Tensor]:
    """T0 to T4, each computed from the one before; all but T0 are dropped."""
    values = [leaf(runtime, 1.5, units=units)]
    for _ in range(4):
        values.append(values[-1] + values[-1])
    for value in values[1:]:
        drop(runtime, value)
    return values


@pytest.mark.parametrize(("switches", "replayed"), [(ALL_ON, (4, 0, 0)), (OFF["collective"], (4, 3, 2))])
def test_without_collective_recomputation_each_value_has_a_replay_of_its_own(switches, replayed):
    with small_runtime(switches=switches) as runtime:
        values = chain(runtime)
        counts = []
        for value in (values[4], values[3], values[2]):
            with launches(runtime) as names:
                assert value.numpy()[0] == 1.5 * 2 ** next(i for i, v in enumerate(values) if v is value)
            counts.append(len(names))
            runtime.check()
        assert tuple(counts) == replayed
        kept = [value.status for value in values[1:4]]
        assert kept == [IN] * 3 if switches is ALL_ON else kept.count(RECOMPUTE) >= 1


def test_what_replays_have_kept_is_dropped_again_before_anything_is_swapped():
    # 16 units: T0 and, after one replay, T4 with T1 to T3 beside it, 2 each. 8 more need two of these; the oldest go.
    with small_runtime(units=16) as runtime:
        values = chain(runtime, 2)
        values[4].numpy()
        assert [value.status for value in values] == [IN] * 5
        other = leaf(runtime, units=10)
        assert [value.status for value in values] == [IN, RECOMPUTE, RECOMPUTE, IN, IN]
        assert runtime.stats().swapped_out_bytes == 0
        values[3].numpy()  # that was what it had been kept for: from now on it is like any other
        more = leaf(runtime, units=2)
        assert runtime.stats().swapped_out_bytes > 0 and values[3].status is not RECOMPUTE
        runtime.check()
        del other, more


# Feedback and static times -------------------------------------------------------------------------------------------
class Watching(Passive):
    """Notes what it is asked."""

    plans = True

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.corrections = 0

    def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
        self.traces.append(trace)
        return NO_PLAN

    def feedback(self, proposal: Proposal, observed: Observation) -> Proposal:
        self.corrections += 1
        return proposal


@pytest.mark.parametrize(("switches", "corrections"), [(ALL_ON, 2), (OFF["feedback"], 0)])
def test_without_feedback_no_policy_is_told_how_its_plan_did(switches, corrections):
    policy = Watching()
    train("mlp", steps=4, policy=policy, switches=switches)  # seen, measured, followed twice
    assert len(policy.traces) == 1 and policy.corrections == corrections


def test_static_times_are_flops_at_the_peak_and_keep_the_ratios_of_algorithms():
    # 10 operations at 5 a second: 2 s; the slower algorithm took three times as long as the fastest.
    algorithms = (Algorithm("fast", 0.1, 256, "a"), Algorithm("slow", 0.3, 0, "a"))
    trace = Trace((TraceCall("conv2d", (), (0,), 0.3, algorithms, ()), TraceCall("copy", (0,), (1,), 9.0, (), ())), {})
    first, second = with_static_times(trace, [10.0, 0.0], peak_flops=5.0).calls
    assert first.seconds == 2.0 and [a.seconds for a in first.algorithms] == pytest.approx([2.0, 6.0])
    assert [a.workspace for a in first.algorithms] == [256, 0]
    assert second.seconds == 0.0


def test_with_static_times_a_policy_sees_flops_where_it_would_see_durations():
    seen = {}
    for switches in (ALL_ON, OFF["measured_times"]):
        policy = Watching()
        train("vgg", steps=3, policy=policy, switches=switches)
        seen[switches] = policy.traces[0]
    measured, static = seen[ALL_ON], seen[OFF["measured_times"]]
    assert measured.same_calls(static)
    shares = [sum(c.seconds for c in t.calls if c.op == "relu") / t.seconds for t in (measured, static)]
    assert shares[1] < shares[0] / 2  # what moves bytes but computes little is all but free
    assert all(c.seconds > 0 for c in static.calls if c.op.startswith("conv2d"))


# All of them ---------------------------------------------------------------------------------------------------------
@pytest.mark.default(network=["resnet"])
@pytest.mark.parametrize("name", OFF)
@pytest.mark.parametrize(("network", "policy"), [("resnet", "capuchin"), ("branching", "capuchin-recompute")])
def test_no_switch_changes_a_bit(network, policy, name):
    reference = train(network, steps=4)
    budget = int(reference.demand.largest_op_bytes * 1.2)
    outcome = train(network, steps=4, policy=create(policy), memory_budget=budget, switches=OFF[name])
    assert outcome.stats.swapped_out_bytes + outcome.stats.recomputed_bytes > 0
    assert differences(outcome, reference) == []
