"""A policy that is none, or answers with something else than it should: one error that says whose and what."""

import pytest

from minidl import Runtime, UserError
from minidl.ops import tanh
from minidl.plan.plan import NO_PLAN, Proposal
from minidl.plan.policy import OnDemand
from minidl.policies.passive import Passive


@pytest.mark.parametrize("policy, words", [
    (None, "not None$"), (7, "not int, which has no name, moves_tensors"),
    (Passive, "not the class Passive$"), (object(), "which has no name, moves_tensors, weighs_recomputation"),
])
def test_what_is_no_policy_is_refused(policy, words):
    with pytest.raises(UserError, match="^a policy is a name or an object with the members .*" + words):
        Runtime("sim:p100", policy=policy)


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
    ({"ranked": None}, r"victims\(\) must return a sequence of Eviction\(tensor_id, action\), not NoneType"),
    ({"ranked": [1, 2]}, r"victims\(\) must return a sequence of Eviction\(tensor_id, action\), not list"),
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
