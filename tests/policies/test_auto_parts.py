"""The choices of other planners beside those of `auto`, and plans that do not fit."""

from dataclasses import replace

import numpy as np
import pytest

from bench.support.steps import unmanaged_trace
from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.planning.expansion import expand
from minidl.planning.problem import DROP, SWAP, live_bytes, problem
from minidl.planning.schedule import NO_NOTES, simulate
from minidl.planning.timing import Room
from minidl.policies.auto import by_demand as on_demand
from minidl.policies.auto import policy as auto
from minidl.policies.auto.choices import alike, least_live
from minidl.policies.auto.parts import Question, belady, by_bytes, every_kth, parts
from minidl.policies.auto.policy import Auto
from minidl.policies.auto.search import SLACK
from minidl.policies.capuchin.policy import Capuchin

UNIT = 1 << 20
HOST = 1 << 50
LINK = Costs(1e-9, 1e-9, 0.0)


def chain(length):
    """Tensor n is computed from n - 1; then all are wanted again, last first, and freed."""
    def call(op, inputs, outputs, frees, *, replayable=True):
        return TraceCall(op=op, inputs=inputs, outputs=outputs, seconds=1e-3, algorithms=(), frees=frees, donated=(),
                         may_donate=(), writes=(), replayable=replayable)

    calls = [call("make", (n - 1,) if n else (), (n,), (), replayable=n > 0) for n in range(length)]
    calls += [call("use", (n,), (length + n,), (n, length + n)) for n in reversed(range(length))]
    return Trace(tuple(calls), {n: TraceTensor(n, UNIT, False) for n in range(2 * length)})


def peak(facts, mode):
    return simulate(facts, Room(0, HOST, SLACK), mode, mode.copy(), NO_NOTES).excess


def test_beladys_choice_swaps_what_is_wanted_last_and_no_more_than_it_must():
    facts = problem(with_algorithms(chain(8)), LINK)
    mode = belady(facts, 6 * UNIT)  # 9 are live at the turn; the earliest are wanted last
    away = facts.ids[facts.gap_tensor[mode == SWAP]]
    assert not (mode == DROP).any() and sorted(away) == list(range(len(away))) and 3 <= len(away) <= 4
    assert not belady(facts, 9 * UNIT).any()


def test_chens_choices_drop_what_can_be_made_again_and_keep_some_at_equal_distances():
    facts = problem(with_algorithms(chain(9)), LINK)
    for modes in (every_kth(facts), by_bytes(facts)):
        for mode in modes:
            assert not (mode == SWAP).any() and facts.can_drop[mode == DROP].all()
    kept = facts.ids[facts.gap_tensor[next(every_kth(facts)) != DROP]]
    assert set(kept) >= {0, 2, 4, 6}  # 0 cannot be made again; of the others every second stays


def test_gaps_are_alike_whose_tensors_are_of_a_size_and_are_made_and_read_by_the_same_operations():
    made = chain(9)
    for n in (1, 3, 5, 7):
        made.tensors[n] = TraceTensor(n, 2 * UNIT, False)
    # Call 4 makes tensor 4 and begins the gap of 3; call 15 ends that of 2. The last tensor is read at once: no gap.
    calls = [replace(c, op="other") if k in (4, 15) else c for k, c in enumerate(made.calls)]
    trace = with_algorithms(Trace(tuple(calls), made.tensors))
    facts = problem(trace, LINK)
    owners = facts.ids[facts.gap_tensor].tolist()
    assert owners == list(range(8))
    assert {owners[gap]: owners[then] for gap, then in enumerate(alike(trace, facts)) if then >= 0} == {
        0: 6, 1: 5, 5: 7}


def with_algorithms(trace):
    """A chain whose calls have one algorithm each."""
    return Trace(tuple(replace(c, algorithms=(Algorithm("", c.seconds),)) for c in trace.calls), trace.tensors)


@pytest.fixture(scope="module")
def resnet():
    return unmanaged_trace("resnet18", 64)


def test_what_lives_before_a_call_needs_its_bytes_whatever_is_donated(resnet):
    """So ``auto`` need not simulate a step to see that it does not fit."""
    trace, costs, _ = resnet
    facts = problem(trace, costs)
    kept = np.zeros(len(facts.gap_call), np.int64)
    during = expand(facts, kept, kept.copy(), NO_NOTES)[0].during
    assert (least_live(facts) <= during).all() and (during <= live_bytes(facts)).all()


def needed(trace, costs):
    """Bytes that are live at once, without workspaces."""
    facts = problem(trace, costs)
    mode = np.zeros(len(facts.gap_call), np.int64)
    low, high = 1, 1 << 40
    while high - low > UNIT:
        middle = (low + high) // 2
        excess = simulate(facts, Room(middle, HOST, SLACK), mode, mode.copy(), NO_NOTES).excess
        low, high = (middle, high) if excess > 0 else (low, middle)
    return high


def test_the_first_plan_is_predicted_to_be_no_slower_than_what_any_other_planner_chooses(resnet, monkeypatch):
    trace, costs, _ = resnet
    monkeypatch.setattr(auto, "FIRST_WORK", 3e5)
    facts, whole = problem(trace, costs), needed(trace, costs)
    limits = Limits(int(whole * 0.7), HOST)
    found = Auto().plan(trace, costs, limits).plan
    room = Room(limits.device_bytes, HOST, SLACK)
    outcomes = [simulate(facts, room, mode, mode.copy(), NO_NOTES) for mode in parts(Question(trace, costs, limits))]
    others = [outcome.seconds for outcome in outcomes if outcome.excess <= 0]
    assert others and found.predicted_seconds <= 1.002 * min(others)


def test_a_plan_that_needs_more_than_there_is_is_not_adopted(resnet, monkeypatch):
    trace, costs, _ = resnet
    monkeypatch.setattr(auto, "FIRST_WORK", 1e5)
    proposal = Auto().plan(trace, costs, Limits(needed(trace, costs) // 50, HOST))  # less than single operations need
    assert not proposal.plan.evictions and proposal.notes is not None
    assert not proposal.notes.waiting


def test_operands_of_one_call_leave_in_their_order_as_on_the_engine(resnet):
    trace, costs, _ = resnet
    facts, several = problem(trace, costs), 0
    for call, operands in enumerate([*dict.fromkeys((*c.inputs, *c.outputs))] for c in trace.calls):
        here = facts.ids[facts.gap_tensor[facts.gap_call == call]].tolist()
        assert here == [t for t in operands if t in here]
        several += len(here) > 1
    assert several > 5


def test_where_capuchins_planner_would_take_too_long_its_choices_are_left_out(resnet, monkeypatch):
    trace, costs, _ = resnet
    limits = Limits(400 << 20, HOST)
    count = len(list(parts(Question(trace, costs, limits))))
    monkeypatch.setattr("minidl.policies.auto.parts.MOST_PAIRS", 0)
    assert len(list(parts(Question(trace, costs, limits)))) == count - 2


def test_other_planners_are_asked_once_and_what_a_search_repairs_does_not_change_their_choices(resnet, monkeypatch):
    trace, costs, _ = resnet
    asked, given = [], Question(trace, costs, Limits(400 << 20, HOST))
    choose, dry_runs = Capuchin.choose, on_demand.by_demand
    monkeypatch.setattr(Capuchin, "choose", lambda *a: (asked.append("capuchin"), choose(*a))[1])
    monkeypatch.setattr(on_demand, "by_demand", lambda *a: (asked.append("on demand"), dry_runs(*a))[1])
    first = [*given.capuchins(1 << 40), *given.by_demand()]
    known = [mode.copy() for mode in first]
    for mode in first:
        assert mode.any()
        mode[:] = 0
    assert np.array_equal([*given.capuchins(1 << 40), *given.by_demand()], known)
    assert asked == ["capuchin", "capuchin", "on demand"] and not given.capuchins(0)
