"""A policy that is none, or answers with something else than it should: one error that says whose and what."""

import pytest

from minidl import Runtime, UserError, policies
from minidl.lab import cell
from minidl.lab.training_step import trace_of
from minidl.ops import tanh
from minidl.plan.plan import NO_PLAN, Action, Eviction, Plan, Proposal
from minidl.plan.policy import OnDemand
from minidl.policies.passive import Passive


@pytest.mark.parametrize("policy, words", [
    (None, "not None$"), (7, "not int, which has no name, moves_tensors"),
    (Passive, "not the class Passive$"), (object(), "which has no name, moves_tensors, weighs_recomputation"),
    (OnDemand(), "not OnDemand, which has no victims$"), ("builtins:dict", "not dict, which has no name, moves_tensor"),
])
def test_what_is_no_policy_is_refused_wherever_a_policy_is_chosen(policy, words):
    for choose in (lambda: Runtime("sim:p100", policy=policy), lambda: policies.create(policy),
                   lambda: cell.run("lenet", trace_of("lenet", 8), cell.Machine(), policy, 0.7)):
        with pytest.raises(UserError, match="^a policy is a name or an object with the members .*" + words):
            choose()


OUT = Action.SWAP_OUT


class Odd(OnDemand):
    """Answers as it is told."""

    name = "odd"
    plans = True

    def __init__(self, *, planned=NO_PLAN, told=NO_PLAN, ranked=()):
        self.answers = {"planned": planned, "told": told, "ranked": ranked}

    def plan(self, trace, costs, limits):
        return self.answers["planned"]

    def feedback(self, proposal, observed):
        return self.answers["told"]

    def victims(self, resident, pressure):
        return self.answers["ranked"]


@pytest.mark.parametrize("answer, words", [
    ({"planned": None}, r"plan\(\) must return a Proposal with a Plan, not NoneType"),
    ({"planned": NO_PLAN.plan}, r"plan\(\) must return a Proposal with a Plan, not Plan"),
    ({"planned": Proposal({})}, r"plan\(\) must return a Proposal with a Plan, not a Proposal of dict"),
    ({"told": None}, r"feedback\(\) must return a Proposal with a Plan, not NoneType"),
    ({"planned": Proposal(Plan({(99, 1): OUT}))},
     r"plan\(\) returns a plan that cannot be followed: it names access 1 of tensor 99, which has 0"),
    ({"told": Proposal(Plan({(0, 1): "drop"}))},
     r"feedback\(\) returns a plan .* it gives tensor 0 the action 'drop': write Action.SWAP_OUT or Action.DROP"),
    ({"planned": Proposal(Plan(offsets={(0, 0): 512}))},
     r"plan\(\) returns a plan .* tensor 0, of 256 bytes, the address 512, and the device has 512 bytes"),
    ({"ranked": None}, r"victims\(\) must return a sequence of Eviction\(tensor_id, action\), not None; to evict noth"),
    ({"ranked": [1, 2]}, r"victims\(\) must return a sequence of Eviction\(tensor_id, action\), and 1 is none"),
    ({"ranked": [Eviction(99, OUT)]}, r"victims\(\) names tensor 99, which is none of the 1 tensors that it was"),
    ({"ranked": [Eviction([], OUT)]}, r"victims\(\) names tensor \[\], which is none of the 1 tensors that it was"),
    ({"ranked": (Eviction(each, OUT) for each in (99,))}, r"victims\(\) names tensor 99, which is none of the 1"),
    ({"ranked": [Eviction(0, "DROP")]}, r"victims\(\) gives tensor 0 the action 'DROP': write Action.SWAP_OUT or"),
    ({"ranked": [Eviction(0, 42)]}, r"victims\(\) gives tensor 0 the action 42: write Action.SWAP_OUT or Action.DROP"),
])
def test_an_answer_that_is_none_is_an_error_that_names_the_policy_and_the_method(answer, words):
    with (pytest.raises(UserError, match="^policy 'odd': " + words),
          Runtime("sim:p100", policy=Odd(**answer), memory_budget=512) as runtime):
        x = runtime.tensor(None, shape=(64,))
        for _ in range(4):
            with runtime.iteration():
                y = tanh(x)
                del y
        if "ranked" in answer:
            kept = [tanh(x), tanh(x)]
            del kept
