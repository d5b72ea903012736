"""Traces and plans survive JSON; what is wrong in a file is named with its place."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from networks import train

from minidl.errors import UserError
from minidl.meta import Algorithm
from minidl.plan import document
from minidl.plan.costs import Costs, Limits
from minidl.plan.formats import (
    SavedPlan,
    plan_from_json,
    plan_to_json,
    read_plan,
)
from minidl.plan.plan import NO_PLAN, Action, Eviction, Move, Plan, Proposal
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.plan.trace_format import trace_from_json, trace_to_json
from minidl.policies.capuchin.policy import Capuchin
from minidl.policies.passive import Passive

ALGORITHMS = (Algorithm("fast", 0.1, 256, "a"), Algorithm("plain", 1 / 3, 0, "b"))
TRACE = Trace(
    (TraceCall("conv", (-1, 0), (1, 2), 1 / 3, ALGORITHMS, (0,), donated=((1, 0),), may_donate=((1, 0), (2, 0))),
     TraceCall("update_", (-1, 1), (), 0.0, ALGORITHMS[1:], (1, 1 << 40), writes=(-1,), replayable=False, saves=(1,),
               takes=(0,), leaves=(2,), long_lived=True)),
    {t: TraceTensor(t, nbytes, t < 0, 3) for t, nbytes in ((-1, 4), (0, 0), (1, 1 << 40), (2, 7), (1 << 40, 9))})
WINDOWED = replace(TRACE, windows={t: (at[0], at[1]) for t, at in TRACE.uses.items() if len(at) > 1})
PLAN = Plan(evictions={(5, 1): Action.SWAP_OUT, (-2, 3): Action.DROP}, prefetches={(6, 2): (5, 9), (6, 3): (1 << 40,)},
            offsets={(5, 0): 256, (5, 1): 0, (1 << 40, 0): 512},
            waits=frozenset({(6, 2), (5, 1)}),
            releases={(6, 2): (Eviction(5, Action.SWAP_OUT), Eviction(9, Action.DROP))}, replays={(6, 3): (-2, 9)},
            spent={(6, 3): (Eviction(7, Action.DROP),)},
            moves={(6, 2): (Move(5, 512), Move(-2, 0)), (6, 3): (Move(9, 256),)},
            algorithms={17: "winograd", 1106: ""}, predicted_seconds=0.1 + 0.2)
SAVED = SavedPlan(PLAN, 1107, {5: ("conv", 4), -2: ("", 1 << 40)})


def head(text: str) -> dict[str, Any]:
    return {key: json.loads(text)[key] for key in ("format", "version")}


def test_a_trace_is_the_same_after_a_round_trip():
    text = trace_to_json(TRACE)
    assert trace_from_json(text) == TRACE and trace_from_json(text.encode()) == TRACE
    assert head(text) == {"format": "minidl-trace", "version": 3}
    assert trace_from_json(trace_to_json(Trace((), {}))) == Trace((), {})
    for windows in ({}, WINDOWED.windows):
        assert trace_from_json(trace_to_json(replace(TRACE, windows=windows))).windows == windows


def test_a_plan_is_the_same_after_a_round_trip():
    assert plan_from_json(plan_to_json(SAVED)) == SAVED
    assert head(plan_to_json(SAVED)) == {"format": "minidl-plan", "version": 4}
    nothing = SavedPlan(Plan(), 0, {})
    assert plan_from_json(plan_to_json(nothing)) == nothing
    assert list(plan_from_json(plan_to_json(SAVED)).plan.prefetches) == list(PLAN.prefetches)  # order is part of a plan


def test_every_field_is_in_the_file():
    def names(kind: type) -> set[str]:
        return {field.name for field in fields(kind)}

    plan, trace = json.loads(plan_to_json(SAVED)), json.loads(trace_to_json(TRACE))
    assert plan.keys() - {"format", "version", "calls"} == names(Plan)
    assert trace.keys() - {"format", "version"} == names(Trace) - {"observed_seconds"}  # of no other run
    assert trace["calls"][0].keys() == names(TraceCall)
    assert trace["calls"][0]["algorithms"][0].keys() == names(Algorithm)
    assert len(trace["tensors"][0]) == len(names(TraceTensor))


TRACE_1 = """{"format": "minidl-trace", "version": 1,
 "tensors": [
  {"id": -1, "bytes": 4, "persistent": true},
  {"id": 0, "bytes": 8, "persistent": false}],
 "calls": [
  {"op": "conv", "inputs": [-1], "outputs": [0], "seconds": 1e-05, "algorithms": [{"name": "fast", "seconds": 1e-05, \
"workspace": 256, "bits_class": "a"}], "frees": [0], "donated": [], "may_donate": [[0, -1]], "writes": [], \
"replayable": true}]}
"""
TRACE_2 = TRACE_1.replace('"version": 1', '"version": 2').replace(
    'false}', 'false, "idle": 0}', 1).replace('"persistent": true}', '"persistent": true, "idle": 0}').replace(
    '"replayable": true', '"replayable": true, "saves": [], "takes": [], "leaves": [], "long_lived": false')
OLD_TRACE = TRACE_2.replace('"version": 2', '"version": 3').replace("}]}\n", '}],\n "windows": null}\n')
PLAN_3 = """{"format": "minidl-plan", "version": 3,
 "calls": 3,
 "predicted_seconds": null,
 "evictions": [
  {"tensor": 5, "access": 1, "action": "swap out", "op": "conv", "bytes": 4}],
 "prefetches": [
  {"tensor": 6, "access": 2, "swap_in": [5]}],
 "offsets": [],
 "waits": [
  {"tensor": 6, "access": 2}],
 "releases": [
  {"tensor": 6, "access": 2, "release": [[7, "drop"]]}],
 "replays": [
  {"tensor": 6, "access": 3, "replay": [7]}],
 "spent": [],
 "algorithms": [
  {"call": 2, "algorithm": "winograd"}]}
"""


OLD_PLAN = PLAN_3.replace('"version": 3', '"version": 4').replace(
    ' "algorithms"', ' "moves": [\n  {"tensor": 6, "access": 3, "move": [[7, 1024], [8, 0]]}],\n "algorithms"')


def test_files_of_these_versions_stay_as_they_are_to_the_byte():
    assert trace_to_json(trace_from_json(OLD_TRACE)) == OLD_TRACE
    assert trace_from_json(TRACE_1) == trace_from_json(OLD_TRACE) == trace_from_json(TRACE_2)  # these are still read
    assert plan_to_json(plan_from_json(OLD_PLAN)) == OLD_PLAN
    assert plan_from_json(PLAN_3) == replace(plan_from_json(OLD_PLAN), plan=replace(
        plan_from_json(OLD_PLAN).plan, moves={}))  # version 3 is still read


def test_each_call_and_each_tensor_is_one_line():
    assert len(trace_to_json(TRACE).splitlines()) == 1 + 1 + 5 + 1 + 2 + 1  # head, tensors, calls, windows
    # head, "calls", "predicted_seconds"; then each list
    lists = (1 + 2) + (1 + 2) + (1 + 3) + (1 + 2) + (1 + 1) + (1 + 1) + (1 + 1) + (1 + 2) + (1 + 2)
    assert len(plan_to_json(SAVED).splitlines()) == 1 + 1 + 1 + lists


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
    again = replace(again, observed_seconds=trace.observed_seconds)  # which no file has
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
    ("format", "minidl-plan", 'the format of this file is "minidl-plan"'),
    ("format", ..., "Object missing required field `format`"),
    ("version", 4, "version 4; only versions 1 and 2 and 3 can be read"),
    ("version", ..., "Object missing required field `version`"),
    ("version", True, "Expected `int`, got `bool` - at `$.version`"),
    ("calls", ..., "Object missing required field `calls`"),
    ("calls", {}, "Expected `array`, got `object` - at `$.calls`"),
    ("calls.1", 5, "Expected `object`, got `int` - at `$.calls[1]`"),
    ("more", 1, "Object contains unknown field `more`"),
    ("calls.1.op", ..., "Object missing required field `op` - at `$.calls[1]`"),
    ("calls.1.op", None, "Expected `str`, got `null` - at `$.calls[1].op`"),
    ("calls.0.more", 1, "Object contains unknown field `more` - at `$.calls[0]`"),
    ("calls.0.seconds", -1, "Expected `float` >= 0.0 - at `$.calls[0].seconds`"),
    ("calls.0.seconds", float("nan"), "not JSON: JSON is malformed: invalid character (byte 427)"),
    pytest.param("calls.0.seconds", 10 ** 400, "Number out of range - at `$.calls[0].seconds`", id="huge"),
    ("calls.0.inputs", [True], "Expected `int`, got `bool` - at `$.calls[0].inputs[0]`"),
    ("calls.0.inputs", [77], "tensor 77 is not listed in tensors - at `$.calls[0]`"),
    ("calls.1.frees", [77], "tensor 77 is not listed in tensors - at `$.calls[1]`"),
    ("calls.0.writes", [77], "tensor 77 is not listed in tensors - at `$.calls[0]`"),
    ("calls.0.donated", [[1, 77]], "tensor 77 is not listed in tensors - at `$.calls[0]`"),
    ("calls.0.may_donate", [[77, 0]], "tensor 77 is not listed in tensors - at `$.calls[0]`"),
    ("calls.0.donated", [[1]], "Expected `array` of length 2 - at `$.calls[0].donated[0]`"),
    ("calls.1.outputs", [2], "tensor 2 was made before - at `$.calls[1].outputs`"),
    ("calls.0.algorithms.1.workspace", -1, "Expected `int` >= 0 - at `$.calls[0].algorithms[1].workspace`"),
    ("calls.1.algorithms", [], "Expected `array` of length >= 1 - at `$.calls[1].algorithms`"),
    ("calls.0.algorithms.1.workspace", 1 << 54,
     f"Expected `int` <= {1 << 53} - at `$.calls[0].algorithms[1].workspace`"),
    ("calls.0.seconds", 1e300, "Expected `float` <= 1e+30 - at `$.calls[0].seconds`"),
    ("calls.0.algorithms.0.more", 1, "Object contains unknown field `more` - at `$.calls[0].algorithms[0]`"),
    ("calls.0.replayable", 1, "Expected `bool`, got `int` - at `$.calls[0].replayable`"),
    ("tensors.2.bytes", 1.5, "Expected `int`, got `float` - at `$.tensors[2].bytes`"),
    ("tensors.2.id", "1", "Expected `int`, got `str` - at `$.tensors[2].id`"),
    ("tensors.2.id", 0, "0 is listed twice - at `$.tensors[2]`"),
])
def test_a_bad_trace_is_refused_with_the_place(path, value, message):
    with pytest.raises(UserError) as error:
        trace_from_json(changed(trace_to_json(TRACE), path, value))
    assert str(error.value) == f"minidl-trace: {message}"


@pytest.mark.parametrize(("windows", "message"), [
    ([{"tensor": -1, "after": 0, "until": 2}], "tensor -1 has no two accesses, one after the other, by calls 0 and 2"),
    ([{"tensor": 77, "after": 0, "until": 1}], "tensor 77 has no two accesses, one after the other, by calls 0 and 1"),
    ([{"tensor": -1, "after": 0}], "Object missing required field `until`"),
    ({}, "Expected `array | null`, got `object`")])
def test_a_window_that_is_no_gap_is_refused_with_its_place(windows, message):
    with pytest.raises(UserError, match=r"windows") as error:
        trace_from_json(changed(trace_to_json(TRACE), "windows", windows))
    assert message in str(error.value)
    with pytest.raises(UserError, match="unknown field"):
        trace_from_json(changed(trace_to_json(TRACE), "windows", None).replace('"version": 3', '"version": 2'))


@pytest.mark.parametrize(("path", "value", "message"), [
    ("format", "minidl-trace", 'the format of this file is "minidl-trace"'),
    ("evictions.0.action", "sell", "Invalid enum value 'sell' - at `$.evictions[0].action`"),
    ("evictions.1.access", 0, "Expected `int` >= 1 - at `$.evictions[1].access`"),
    ("evictions.1.tensor", ..., "Object missing required field `tensor` - at `$.evictions[1]`"),
    ("evictions.1.tensor", 5, "tensor 5 had another op or other bytes before - at `$.evictions[1]`"),
    ("evictions.0.bytes", ..., "Object missing required field `bytes` - at `$.evictions[0]`"),
    ("prefetches.1.access", 2, "(6, 2) is listed twice - at `$.prefetches[1]`"),
    ("prefetches.0.swap_in", 5, "Expected `array`, got `int` - at `$.prefetches[0].swap_in`"),
    ("predicted_seconds", "1", "Expected `float | null`, got `str` - at `$.predicted_seconds`"),
    ("round", 1, "Object contains unknown field `round`"),
    ("offsets.1.arrival", 0, "(5, 0) is listed twice - at `$.offsets[1]`"),
    ("offsets.0.offset", -1, "Expected `int` >= 0 - at `$.offsets[0].offset`"),
    ("offsets.0.offset", 100, "Expected `int` that's a multiple of 256 - at `$.offsets[0].offset`"),
    ("offsets.0.offset", 1 << 70, f"Expected `int` <= {1 << 53} - at `$.offsets[0].offset`"),
    ("waits.0", {"tensor": 6, "access": 2}, "(6, 2) is listed twice - at `$.waits[1]`"),
    ("moves.0.move.0.1", 100, "Expected `int` that's a multiple of 256 - at `$.moves[0].move[0][1]`"),
    ("moves.1.access", 2, "(6, 2) is listed twice - at `$.moves[1]`"),
    ("version", 2, "version 2; only versions 3 and 4 can be read"),
    ("calls", -1, "Expected `int` >= 0 - at `$.calls`"),
])
def test_a_bad_plan_is_refused_with_the_place(path, value, message):
    with pytest.raises(UserError) as error:
        plan_from_json(changed(plan_to_json(SAVED), path, value))
    assert str(error.value) == f"minidl-plan: {message}"


@pytest.mark.parametrize("text", ["", "{", b"\xff", b'{"format": "\xff", "version": 1}', '{"format": "\ud800"}'])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(UserError, match="^minidl-trace: not JSON: "):
        trace_from_json(text)


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_json_that_is_no_object_is_refused(text):
    with pytest.raises(UserError, match="^minidl-trace: Expected `object`, got "):
        trace_from_json(text)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"calls": ' + "[" * 10**5, '{"calls": ' + '{"a": ' * 10**5])
def test_json_that_is_nested_too_deeply_is_refused_with_one_message(text):
    with pytest.raises(UserError, match="^minidl-trace: (not JSON that can be read: nested|Expected `object`)"):
        trace_from_json(text)


def test_no_more_of_a_file_is_read_than_a_plan_may_have(monkeypatch, tmp_path):
    monkeypatch.setattr(document, "MOST_BYTES", 1000)
    (tmp_path / "plan").write_bytes(b" " * 1001)
    with pytest.raises(UserError, match="/plan: longer than the limit of 1000 bytes$"):
        read_plan(str(tmp_path / "plan"))


def test_a_message_stays_short_whatever_a_file_calls_its_keys():
    with pytest.raises(UserError) as error:
        trace_from_json(changed(trace_to_json(TRACE), "calls.0." + "x" * 10**6, 1))
    assert len(str(error.value)) < 250 and str(error.value).endswith("xxx` - at `$.calls[0]`")
