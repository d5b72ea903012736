"""Traces and plans survive JSON; what is wrong in a file is named with its place."""

import json
from dataclasses import fields
from typing import Any

import pytest
from networks import train

from minidl.errors import UserError
from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import SavedPlan, plan_from_json, plan_to_json, trace_from_json, trace_to_json
from minidl.plan.plan import NO_PLAN, Action, Plan, Proposal
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.policies.capuchin.policy import Capuchin
from minidl.policies.passive import Passive

ALGORITHMS = (Algorithm("fast", 0.1, 256, "a"), Algorithm("plain", 1 / 3, 0, "b"))
TRACE = Trace(
    (TraceCall("conv", (-1, 0), (1, 2), 1 / 3, ALGORITHMS, (0,), donated=((1, 0),), may_donate=((1, 0), (2, 0))),
     TraceCall("update_", (-1, 1), (), 0.0, (), (1, 1 << 40), writes=(-1,), replayable=False)),
    {t: TraceTensor(t, nbytes, t < 0) for t, nbytes in ((-1, 4), (0, 0), (1, 1 << 40), (2, 7), (1 << 40, 9))})
PLAN = Plan(evictions={(5, 1): Action.SWAP_OUT, (-2, 3): Action.DROP}, prefetches={(6, 2): (5, 9), (6, 3): (1 << 40,)},
            offsets={(5, 0): 256, (5, 1): 0, (1 << 40, 0): 512}, predicted_seconds=0.1 + 0.2)
SAVED = SavedPlan(PLAN, 1107, {5: ("conv", 4), -2: ("", 1 << 40)})


def head(text: str) -> dict[str, Any]:
    return {key: json.loads(text)[key] for key in ("format", "version")}


def test_a_trace_is_the_same_after_a_round_trip():
    text = trace_to_json(TRACE)
    assert trace_from_json(text) == TRACE and trace_from_json(text.encode()) == TRACE
    assert head(text) == {"format": "minidl-trace", "version": 1}
    assert trace_from_json(trace_to_json(Trace((), {}))) == Trace((), {})


def test_a_plan_is_the_same_after_a_round_trip():
    assert plan_from_json(plan_to_json(SAVED)) == SAVED
    assert head(plan_to_json(SAVED)) == {"format": "minidl-plan", "version": 2}
    nothing = SavedPlan(Plan(), 0, {})
    assert plan_from_json(plan_to_json(nothing)) == nothing
    assert list(plan_from_json(plan_to_json(SAVED)).plan.prefetches) == list(PLAN.prefetches)  # order is part of a plan


def test_every_field_is_in_the_file():
    def names(kind: type) -> set[str]:
        return {field.name for field in fields(kind)}

    plan, trace = json.loads(plan_to_json(SAVED)), json.loads(trace_to_json(TRACE))
    assert plan.keys() - {"format", "version", "calls"} == names(Plan)
    assert trace.keys() - {"format", "version"} == names(Trace)
    assert trace["calls"][0].keys() == names(TraceCall)
    assert trace["calls"][0]["algorithms"][0].keys() == names(Algorithm)
    assert len(trace["tensors"][0]) == len(names(TraceTensor))


def test_each_call_and_each_tensor_is_one_line():
    assert len(trace_to_json(TRACE).splitlines()) == 1 + 1 + 5 + 1 + 2  # head, "tensors", "calls"
    # head, "calls", "predicted_seconds"; then each list
    assert len(plan_to_json(SAVED).splitlines()) == 1 + 1 + 1 + (1 + 2) + (1 + 2) + (1 + 3)


def test_a_measured_trace_gives_the_same_plan_after_a_round_trip():
    class Measuring(Passive):
        plans = True
        seen: tuple[Trace, Costs, Limits]

        def plan(self, trace: Trace, costs: Costs, limits: Limits) -> Proposal:
            Measuring.seen = trace, costs, limits
            return NO_PLAN

    demand = train("resnet", steps=1).demand
    train("resnet", steps=3, policy=Measuring(), memory_budget=demand.unmanaged_peak_bytes // 2)
    trace, costs, limits = Measuring.seen
    again = trace_from_json(trace_to_json(trace))
    assert again == trace and again.accesses == trace.accesses
    proposal = Capuchin().plan(trace, costs, limits)
    assert proposal.plan.evictions and Capuchin().plan(again, costs, limits) == proposal
    assert plan_from_json(plan_to_json(SavedPlan.of(proposal.plan, trace))).plan == proposal.plan


def changed(text: str, path: str, value: Any) -> str:
    """The document with the value at ``path`` replaced; ``...`` removes it."""
    data = json.loads(text)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = data
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(("path", "value", "message"), [
    ("format", "minidl-plan", 'minidl-trace: the format of this file is "minidl-plan"'),
    ("format", ..., 'minidl-trace: expected an object with "format": "minidl-trace"'),
    ("version", 2, "minidl-trace: version 2; only version 1 can be read"),
    ("version", ..., "minidl-trace: version null; only version 1 can be read"),
    ("version", True, "minidl-trace: version true; only version 1 can be read"),
    ("calls", ..., "minidl-trace: calls is missing"),
    ("calls", {}, "minidl-trace: calls: expected a list of objects, got {}"),
    ("calls.1", 5, "minidl-trace: calls[1]: expected an object, got 5"),
    ("more", 1, "minidl-trace: more is unknown; there are tensors, calls"),
    ("calls.1.op", ..., "minidl-trace: calls[1].op is missing"),
    ("calls.1.op", None, "minidl-trace: calls[1].op: expected a string, got null"),
    ("calls.0.more", 1, "minidl-trace: calls[0].more is unknown; there are op, inputs"),
    ("calls.0.seconds", -1, "minidl-trace: calls[0].seconds: expected seconds, a number of at least 0, got -1"),
    ("calls.0.seconds", float("nan"), "minidl-trace: calls[0].seconds: expected seconds"),
    pytest.param("calls.0.seconds", 10 ** 400, "minidl-trace: calls[0].seconds: expected seconds", id="huge"),
    ("calls.0.inputs", [True], "minidl-trace: calls[0].inputs: expected a list of tensor ids, got [true]"),
    ("calls.0.inputs", [77], "minidl-trace: calls[0].inputs: tensor 77 is not listed in tensors"),
    ("calls.1.frees", [77], "minidl-trace: calls[1].frees: tensor 77 is not listed in tensors"),
    ("calls.0.donated", [[1, 77]], "minidl-trace: calls[0].donated: tensor 77 is not listed in tensors"),
    ("calls.0.donated", [[1]], "minidl-trace: calls[0].donated: expected a list of pairs of tensor ids, got [[1]]"),
    ("calls.1.outputs", [2], "minidl-trace: calls[1].outputs: tensor 2 was made before"),
    ("calls.0.algorithms.1.workspace", -1, "minidl-trace: calls[0].algorithms[1].workspace: expected an integer of at"),
    ("calls.0.replayable", 1, "minidl-trace: calls[0].replayable: expected true or false, got 1"),
    ("tensors.2.bytes", 1.5, "minidl-trace: tensors[2].bytes: expected an integer of at least 0, got 1.5"),
    ("tensors.2.id", "1", 'minidl-trace: tensors[2].id: expected an integer, got "1"'),
    ("tensors.2.id", 0, "minidl-trace: tensors[2].id: tensor 0 is listed twice"),
])
def test_a_bad_trace_is_refused_with_the_place(path, value, message):
    with pytest.raises(UserError) as error:
        trace_from_json(changed(trace_to_json(TRACE), path, value))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("path", "value", "message"), [
    ("format", "minidl-trace", 'minidl-plan: the format of this file is "minidl-trace"'),
    ("evictions.0.action", "sell", 'minidl-plan: evictions[0].action: expected "swap out" or "drop", got "sell"'),
    ("evictions.1.access", 0, "minidl-plan: evictions[1].access: accesses are counted from 1"),
    ("evictions.1.tensor", ..., "minidl-plan: evictions[1].tensor is missing"),
    ("prefetches.1.access", 2, "minidl-plan: prefetches[1]: access 2 of tensor 6 is listed twice"),
    ("prefetches.0.swap_in", 5, "minidl-plan: prefetches[0].swap_in: expected a list of tensor ids, got 5"),
    ("predicted_seconds", "1", 'minidl-plan: predicted_seconds: expected seconds, a number of at least 0, got "1"'),
    ("evictions.0.action", "all of them, and of the others those that nobody wants",
     'minidl-plan: evictions[0].action: expected "swap out" or "drop", got "all of them, and of the others those...'),
    ("round", 1, "minidl-plan: round is unknown; there are calls, predicted_seconds, evictions, prefetches, "
     "offsets"),
    ("offsets.1.arrival", 0, "minidl-plan: offsets[1]: arrival 0 of tensor 5 is listed twice"),
    ("offsets.0.offset", -1, "minidl-plan: offsets[0].offset: expected an integer of at least 0, got -1"),
    ("version", 1, "minidl-plan: version 1; only version 2 can be read"),
    ("calls", -1, "minidl-plan: calls: expected an integer of at least 0, got -1"),
    ("evictions.0.bytes", ..., "minidl-plan: evictions[0].bytes is missing"),
    ("evictions.1.tensor", 5, "minidl-plan: evictions[1]: tensor 5 had another op or other bytes before"),
])
def test_a_bad_plan_is_refused_with_the_place(path, value, message):
    with pytest.raises(UserError) as error:
        plan_from_json(changed(plan_to_json(SAVED), path, value))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", b"\xff", "null"])
def test_what_is_not_a_document_at_all_is_refused(text):
    with pytest.raises(UserError, match="^minidl-trace: (not JSON|expected an object)"):
        trace_from_json(text)
