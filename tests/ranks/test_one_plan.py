"""All ranks follow one plan, which rank 0 makes from facts on which the ranks agree."""

from dataclasses import fields, replace
from math import inf

import numpy as np
import pytest
from rank_programs import outcomes

from minidl import Runtime, nn, optim, policies
from minidl.device import profiles
from minidl.device.cpu.device import VirtualCpu
from minidl.memory.guided.ended import Ended, slowest, united
from minidl.memory.guided.sequence import Returns
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Plan, Proposal
from minidl.plan.trace import Trace, TraceCall
from minidl.ranks import RanksDiverged

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, WIDTH, STEPS = 120, 32, 7
BUDGETS = (150_000, 68_000, 180_000)  # of three ranks; a step needs about 90,000 bytes


class Heeded:
    """A policy that notes with what costs and limits it plans, and plans on rank 0 alone."""

    def __init__(self, name, rank):
        self._policy, self._rank = policies.create(name), rank
        self.limits, self.costs, self.observed = [], [], []

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def plan(self, trace, costs, limits):
        assert self._rank == 0, "this rank plans for itself"
        self.limits.append(limits)
        self.costs.append(costs)
        return self._policy.plan(trace, costs, limits)

    def feedback(self, proposal, observed):
        assert self._rank == 0, "this rank corrects a plan for itself"
        self.observed.append(observed.seconds)
        return self._policy.feedback(proposal, observed)


def slow(rank):
    """A device whose link and memory are slower the higher its rank."""
    cpu = profiles.get("cpu")
    return VirtualCpu("cpu:virtual", replace(cpu, link_out_bandwidth=4e9 / (1 + rank), link_in_bandwidth=4e9,
                                             memory_bandwidth=cpu.memory_bandwidth / (1 + rank)))


def runtime_of(ranks, policy="capuchin"):
    return Runtime(slow(ranks.rank), memory_budget=BUDGETS[ranks.rank], host_memory=1 << 24, ranks=ranks,
                   policy=Heeded(policy, ranks.rank) if isinstance(policy, str) else policy)


def training(runtime):
    """A generator that makes a step of training whenever it is asked for the next item."""
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    x = np.ones((BATCH, WIDTH), "float32")
    while True:
        with runtime.iteration():
            optimizer.zero_grad()
            loss = model(runtime.tensor(x)).sum()
            yield
            loss.backward()
            optimizer.step()
            del loss


def steps(made, count):
    for _ in range(count):
        next(made)


@pytest.mark.parametrize("policy", ["capuchin", "auto"])
def test_all_ranks_follow_the_plan_that_rank_0_makes_for_the_slowest_link_and_the_smallest_budget(policy):
    plans, heeded = {}, {}

    def work(runtime, rank):
        made = training(runtime)
        for number in range(12):
            next(made)
            plans[number, rank] = runtime.plan
        made.close()
        heeded[rank] = runtime.policy

    assert outcomes(3, work, lambda ranks: runtime_of(ranks, policy)) == [None, None, None]
    for number in range(12):
        assert plans[number, 0] == plans[number, 1] == plans[number, 2]
    assert any(plan is not None and plan.evictions for plan in plans.values())
    limits, costs = heeded[0].limits, heeded[0].costs
    assert {each.device_bytes for each in limits} == {67_840}  # 68,000 less what does not fill 256 bytes
    assert {each.out_seconds_per_byte for each in costs} == {3 / 4e9}


def test_a_rank_with_another_plan_is_seen_at_its_first_exchange():
    def work(runtime, rank):
        made = training(runtime)
        steps(made, STEPS)
        if rank == 1:
            entry = runtime.guide.entries[-1]
            entry.adopt(Proposal(replace(entry.plan, prefetches={})))
            runtime.guide.planner.tell_plans()
        steps(made, 2)

    raised = outcomes(3, work, runtime_of)
    assert all(isinstance(error, RanksDiverged) for error in raised)
    assert "exchange 0, plans " in str(raised[0])


def test_a_plan_that_one_rank_gives_up_is_given_up_by_all():
    plans, observed = {}, {}

    def work(runtime, rank):
        made = training(runtime)
        steps(made, STEPS)
        assert runtime.plan.evictions
        if rank == 2:
            assert runtime.memory.state.hooks.relent()
        steps(made, 3)
        plans[rank], observed[rank] = runtime.guide.entries[-1].plan, runtime.policy.observed

    assert outcomes(3, work, runtime_of) == [None, None, None]
    assert plans[0] == plans[1] == plans[2]
    assert observed[0].count(inf) == 1 and not observed[1] and not observed[2]


def test_a_policy_that_fails_on_rank_0_ends_all_ranks():
    class Failing(Heeded):
        def plan(self, trace, costs, limits):
            raise ArithmeticError("no idea")

    first, second, third = outcomes(3, lambda runtime, rank: steps(training(runtime), STEPS),
                                    lambda ranks: runtime_of(ranks, Failing("capuchin", ranks.rank)))
    assert isinstance(first, ArithmeticError)
    assert isinstance(second, RanksDiverged) and "rank 0 has failed: ArithmeticError: no idea" in str(second)
    assert isinstance(third, RanksDiverged)


ONE = Ended(0, "", False, 1.0, 0.5, Returns({(7, 1): 0.1}, {}, {}, 10), (1e-9, None), Limits(100, 50),
            Costs(1e-9, 2e-9, 1e-6))


def test_ranks_agree_on_the_slowest_and_on_the_smallest():
    other = Ended(0, "", True, 2.0, 0.1, Returns({(7, 1): 0.3, (8, 1): 0.2}, {}, {}, 4), (3e-9, 1e-9), Limits(90, 60),
                  Costs(2e-9, 1e-9, 0.0))
    assert united([ONE, other]) == united([other, ONE]) == Ended(
        0, "", True, 2.0, 0.5, Returns({(7, 1): 0.3, (8, 1): 0.2}, {}, {}, 10), (3e-9, 1e-9), Limits(90, 50),
        Costs(2e-9, 2e-9, 1e-6))
    assert all(len(fields(kind)) == count for kind, count in ((Limits, 3), (Costs, 6), (Returns, 4)))


@pytest.mark.parametrize("other", [None, ONE._replace(known=1), ONE._replace(known=-1, calls="ab")])
def test_ranks_that_made_other_calls_conclude_nothing(other):
    assert united([ONE, other]) is None and united([other, ONE]) is None
    assert united([ONE]) is ONE and united([]) is None


def test_a_call_of_the_trace_takes_as_long_as_on_the_slowest_rank():
    calls = tuple(TraceCall("add", (), (), seconds, (), ()) for seconds in (1.0, 2.0))
    found = slowest(Trace(calls, {}), [(1.0, 2.0), (3.0, 1.0)])
    assert [call.seconds for call in found.calls] == [3.0, 2.0]


def test_equal_plans_have_equal_facts_in_whatever_order_they_were_made():
    from minidl.memory.guided.sequence import KnownSequence

    def facts(plan):
        entry = KnownSequence([], Trace((), {}))
        entry.adopt(Proposal(plan))
        return entry.plan_facts()

    one, other = ((1, 1), Action.DROP), ((2, 1), Action.DROP)
    assert facts(Plan(dict([one, other]))) == facts(Plan(dict([other, one])))
    assert facts(Plan(dict([one]))) != facts(Plan(dict([other])))
