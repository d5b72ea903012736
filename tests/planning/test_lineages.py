"""Replays in a simulated iteration: writes in place spoil them, cut lineages end them, and no call runs again that
gives other outputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from minidl.meta import Algorithm
from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Action, Plan
from minidl.plan.trace import Trace, TraceCall, TraceTensor
from minidl.planning.expansion import expand
from minidl.planning.problem import DROP, SWAP, problem
from minidl.planning.schedule import IMPOSSIBLE, NO_NOTES, repair, simulate
from minidl.planning.timing import Room
from minidl.policies.capuchin.policy import _replay_seconds
from minidl.policies.literature.static import NEVER, peak_bytes

COSTS = Costs(1e-9, 1e-9, 0.0)
W, X, A, B, C, D = range(6)


def call(inputs, outputs=(), frees=(), **facts):
    return TraceCall("op", inputs, outputs, 1.0, (Algorithm("", 1.0),), frees, **facts)


def trace_of(*calls):
    return Trace(calls, {t: TraceTensor(t, 1024, t == W) for t in (W, X, A, B, C, D)})


def traced(*calls):
    return problem(trace_of(*calls), COSTS)


def gap(facts, tensor, begin):
    return next(g for g in range(len(facts.gap_call))
                if facts.ids[facts.gap_tensor[g]] == tensor and facts.gap_call[g] == begin)


def dropped(facts, *gaps):
    mode = np.zeros(len(facts.gap_call), np.int64)
    for each in gaps:
        mode[gap(facts, *each)] = DROP
    return mode


def replays(facts, mode):
    """(call, the call that it is replayed for) of each replay."""
    steps, _, _, total = expand(facts, mode, mode.copy(), NO_NOTES)
    assert total.failed < 0
    return [(c, k) for c, k in zip(steps.call.tolist(), steps.group.tolist(), strict=True) if c != k]


def test_what_a_write_would_spoil_is_replayed_before_the_first_write_that_would():
    facts = traced(call((W, X), (A,)), call((A,), (B,), (A,)), call((X,), (C,)), call((W,), writes=(W,)),
                   call((B, C), (D,), (B, C)), call((W,), writes=(W,)), call((D,), frees=(D,)))
    number = gap(facts, B, 1)
    assert facts.may_drop[number] and not facts.can_drop[number]
    assert replays(facts, dropped(facts, (B, 1))) == [(0, 3), (1, 3)]


def test_before_the_first_write_a_drop_is_sure():
    facts = traced(call((W, X), (A,)), call((X,), (C,)), call((A, C), (B,), (A, C)), call((W,), writes=(W,)),
                   call((W,), writes=(W,)), call((B,), frees=(B,)))
    assert facts.can_drop[gap(facts, A, 0)]
    assert replays(facts, dropped(facts, (A, 0))) == [(0, 2)]


def test_a_write_does_not_spoil_what_starts_from_a_tensor_that_is_there():
    facts = traced(call((W, X), (A,)), call((A,), (B,)), call((X,), (C,)), call((W,), writes=(W,)),
                   call((B, A), frees=(A, B, C)))
    assert not facts.can_drop[gap(facts, B, 1)]
    assert replays(facts, dropped(facts, (B, 1))) == [(1, 4)]


def test_a_freed_tensor_stays_if_after_the_write_only_it_leads_to_a_dropped_one():
    """B and C start from A, which is freed. The write would spoil both replays."""
    facts = traced(call((W, X), (A,)), call((A,), (B,)), call((A,), (C,), (A,)), call((X,), (D,)),
                   call((W, B), frees=(B,), writes=(W,)), call((X,)), call((C, D), frees=(C, D)))
    assert replays(facts, dropped(facts, (C, 2))) == [(0, 4), (2, 4)]
    mode = dropped(facts, (B, 1), (C, 2))
    assert replays(facts, mode) == [(0, 4), (2, 4), (1, 4)]


def test_inputs_of_one_call_are_replayed_together():
    facts = traced(call((X,), (A,)), call((A,), (B,)), call((A,), (C,), (A,)), call((X,), (D,)),
                   call((B, C, D), frees=(B, C, D)))
    assert replays(facts, dropped(facts, (B, 1), (C, 2))) == [(0, 4), (1, 4), (2, 4)]


@pytest.mark.parametrize("facts", [{"writes": (A,)}, {"leaves": (A,)}], ids=["written", "cut"])
def test_what_has_no_lineage_any_more_is_not_dropped(facts):
    facts = traced(call((X,), (A,)), call((A,), (B,)), call((A,), (), (), **facts), call((B,), (C,)),
                   call((A, C), frees=(A, B, C)))
    assert not facts.may_drop[gap(facts, A, 2)]


# The replay of B before its last use needs the first call, which gives other outputs.
UNREPEATABLE = (call((X,), (A,), replayable=False), call((A,), (B,), (A,)), call((X,), (C,)), call((C,), (D,)),
                call((B, D), frees=(B, D)), call((C,), frees=(C,)))


def test_no_call_runs_again_that_gives_other_outputs_and_repair_swaps_instead():
    facts = traced(*UNREPEATABLE)
    assert not facts.may_drop[facts.gap_tensor == list(facts.ids).index(A)].any()
    mode = dropped(facts, (B, 1), (C, 3))
    total = expand(facts, mode, mode.copy(), NO_NOTES)[3]
    assert total.failed == 4
    room = Room(1 << 30, 1 << 30, 0.0)
    found = repair(facts, mode, lambda mode: simulate(facts, room, mode, mode.copy(), NO_NOTES))
    assert found.failed < 0 and found.seconds < IMPOSSIBLE
    assert mode[gap(facts, B, 1)] == SWAP and mode[gap(facts, C, 3)] == DROP


def test_planners_see_that_a_plan_cannot_be_carried_out():
    trace, limits = trace_of(*UNREPEATABLE), Limits(1 << 30, 1 << 30)
    network = SimpleNamespace(facts=problem(trace, COSTS), trace=trace)
    for key, possible in (((B, 1), False), ((C, 2), True)):
        plan = Plan({key: Action.DROP})
        assert (peak_bytes(network, plan) < NEVER) is possible
        assert (_replay_seconds(plan, trace, COSTS, limits) is not None) is possible


@pytest.mark.parametrize(("replayable", "given", "over"), [(True, False, True), (False, False, False),
                                                            (False, True, True)])
def test_a_tensor_that_could_not_be_computed_again_gives_up_its_bytes_only_if_the_program_gives_them(
        replayable, given, over):
    read = call((W, A), (B,), (A,), donated=((B, A),) if given else (), may_donate=((B, A),))
    assert len(traced(call((W,), (A,), replayable=replayable), read).may_out) == over
