"""What planning may cost: an allowance on the wall clock, a link that varies, and plans under which memory is short."""

from dataclasses import replace

import pytest

from minidl import Runtime
from minidl.errors import OutOfMemory
from minidl.memory.guided.drift import DRIFT_ITERATIONS
from minidl.memory.guided.follower import PlanFollower
from minidl.memory.guided.sequence import Returns
from minidl.memory.switches import ALL_ON
from minidl.ops.elementwise import exp, neg
from minidl.outside.stages import COMPILATION
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Plan, Proposal
from minidl.plan.trace import Trace
from minidl.planning.allowance import SHARE, Allowance
from minidl.policies.passive import Passive

MIB = 1 << 20


def test_planning_on_the_wall_clock_stays_within_its_share_and_first_plans_are_exempt():
    now = [0.0]
    allowance = Allowance(lambda: now[0], limited=True)
    with allowance.planning(exempt=True):
        now[0] += 1.0
    assert not allowance.open  # an answer may take as long as the first plan: 1 s is 2% of 50 s
    asked = 0
    for _ in range(1000):
        allowance.run_seconds += 0.5
        if allowance.open:
            asked += 1
            with allowance.planning():
                now[0] += 1.0
        assert allowance.seconds - 1.0 <= SHARE * allowance.run_seconds
    assert asked == 10  # 2% of 500 s
    assert allowance.share == pytest.approx(11 / 511)


def test_seconds_of_compiling_the_planner_do_not_keep_it_from_being_asked_again(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(COMPILATION, "seconds", 0.0)
    allowance = Allowance(lambda: now[0], limited=True)
    with allowance.planning(exempt=True):
        now[0] += 31.0
        COMPILATION.seconds += 30.0
    allowance.run_seconds = 49.0
    assert not allowance.open
    allowance.run_seconds = 50.1  # 2% of it is the second that the plan itself took
    assert allowance.open


def test_where_time_is_modelled_planning_takes_nothing_of_it():
    now = [0.0]
    allowance = Allowance(lambda: now[0], limited=False)
    with allowance.planning():
        now[0] += 100.0
    assert allowance.open and allowance.share is None


class Fixed(Passive):
    """Swaps the first value that a program makes, and counts how often it is asked."""

    plans = True

    def __init__(self):
        self.asked = self.told = 0

    def plan(self, trace, costs, limits):
        self.asked += 1
        first = trace.calls[0].outputs[0]
        last = max(a.access_count for a in trace.accesses if a.tensor_id == first) - 1
        return Proposal(Plan({(first, last): Action.SWAP_OUT}, predicted_seconds=1e-9), self)

    def feedback(self, proposal, observed):
        self.told += 1
        self.seconds = observed.seconds
        return proposal


def swapping(runtime, *, calls, iterations):
    """``calls`` operations on 8 MiB between the two uses of a value; what the link has become slower by each time."""
    for slower in iterations:
        profile = runtime.device.profile
        runtime.device.profile = replace(profile, link_out_bandwidth=12.4e9 / slower, link_in_bandwidth=12.4e9 / slower)
        with runtime.iteration():
            x = runtime.tensor(None, shape=(2 * MIB,))
            y = neg(x)
            for _ in range(calls):
                y = exp(y)
            neg(x)


SLOW = (1.0, 1.0, 1.0, *[1.5] * (2 * DRIFT_ITERATIONS))


@pytest.mark.parametrize(("calls", "asked"), [(400, 1), (4, 2)])
def test_a_slower_link_makes_plans_anew_only_if_it_makes_the_plan_slower(calls, asked):
    # 8 MiB take 0.7 ms each way at 12.4 GB/s, and a pass over them some 25 us: 400 calls hide both ways, 4 do not
    policy = Fixed()
    with Runtime("sim:p100", policy=policy, memory_budget="64MiB") as runtime:
        swapping(runtime, calls=calls, iterations=SLOW)
    assert policy.asked == asked and policy.told > DRIFT_ITERATIONS


def test_a_link_that_was_slower_before_there_was_a_plan_is_noticed_under_it():
    costs, empty = Costs(1e-9, 1e-9, 0.0), Trace((), {})
    guide = PlanFollower(Passive(), costs, Limits(MIB, MIB), ALL_ON, peak_flops=1e12, measured_iterations=2,
                  allowance=Allowance(lambda: 0.0, limited=False))
    for _ in range(3 + DRIFT_ITERATIONS):  # seen, measured twice; followed from the fourth on
        assert guide.costs == costs
        guide.end_iteration(lambda: empty, seconds=1.0, stall_seconds=0.0, returns=Returns(), link=(2e-9, 2e-9))
    assert guide.costs == Costs(2e-9, 2e-9, 0.0)


def test_a_policy_hears_how_many_iterations_led_to_the_one_that_it_sees():
    class Told(Fixed):
        unseen = ()

        def plan(self, trace, costs, limits):
            return Proposal()

        def feedback(self, proposal, observed):
            self.unseen += (observed.unseen,)
            return proposal

    policy, empty = Told(), Trace((), {})
    guide = PlanFollower(policy, Costs(1e-9, 1e-9, 0.0), Limits(MIB, MIB), ALL_ON, peak_flops=1e12,
                         measured_iterations=2, allowance=Allowance(lambda: 0.0, limited=False))

    def iterate():
        guide.end_iteration(lambda: empty, seconds=1.0, stall_seconds=0.0, returns=Returns())

    for _ in range(4):  # seen, measured twice; followed
        iterate()
    guide.active.settling = 2
    for _ in range(4):
        iterate()
    assert policy.unseen == (0, 2, 0)


def test_a_plan_that_is_made_anew_is_followed_only_if_it_is_better():
    class Worse(Fixed):
        def plan(self, trace, costs, limits):
            proposal = super().plan(trace, costs, limits)
            return proposal if self.asked == 1 else Proposal(Plan(predicted_seconds=1.0))

    policy = Worse()
    with Runtime("sim:p100", policy=policy, memory_budget="64MiB") as runtime:
        swapping(runtime, calls=4, iterations=SLOW)
        assert policy.asked == 2 and runtime.plan.evictions


def test_an_allocation_that_fails_under_a_plan_ends_the_plan_and_not_the_training():
    policy = Fixed()
    with Runtime("sim:p100", policy=policy, memory_budget="64MiB") as runtime:
        swapping(runtime, calls=9, iterations=[1.0] * 3)
        assert runtime.plan.evictions
        room, guide = runtime.memory.room, runtime.guide
        in_use = room._in_use

        def all_in_use(pinned):
            followed = guide.active is not None and guide.active.actions
            return runtime.memory.arena.capacity if followed else in_use(pinned)

        room._in_use = all_in_use
        with runtime.iteration():
            x = runtime.tensor(None, shape=(2 * MIB,))
            y = neg(x)
            for n in range(9):
                y = exp(y)
                if n == 4:
                    room.make(MIB, set(), "exp")  # as an allocation does that finds no block
                    assert guide.active is None
            neg(x)
        assert policy.seconds == float("inf")
        assert not runtime.plan.evictions and guide.active.proposal.notes is None
        told = policy.told
        swapping(runtime, calls=9, iterations=[1.0])
        assert policy.told == told + 1 and not runtime.plan.evictions
        runtime.check()


def test_without_a_plan_an_allocation_that_fails_is_an_error():
    with Runtime("sim:p100", policy="passive", memory_budget="4MiB") as runtime, pytest.raises(OutOfMemory):
        runtime.tensor(None, shape=(2 * MIB,))


def test_what_a_program_does_between_its_iterations_is_not_of_their_time():
    class Waiting(Passive):
        plans = True

        def plan(self, trace, costs, limits):
            self.observed = trace.observed_seconds
            return Proposal()

    policy, waited = Waiting(), [0.0]
    with Runtime("sim:p100", policy=policy, memory_budget="1MiB") as runtime:
        device, now = runtime.device, runtime.device.now
        device.wall_clock, device.now = True, lambda: now() + waited[0]
        for _ in range(2):
            waited[0] += 1000.0
            with runtime.iteration():
                exp(runtime.tensor(None, shape=(64,)))
    assert policy.observed < 1.0
