"""``auto`` on the steps of other programs: first among all policies, with a host or without, no slower in more memory.

Cells are shares of the unmanaged peak; seconds are shares of the unmanaged step.
"""

from math import inf

import pytest
from strangers import STRANGERS

from bench.support.promises import MISSED, Cell, dips
from minidl.lab import cell
from minidl.lab.inferred import completed
from minidl.memory.freeing import Freeing
from minidl.memory.lineage import can_be_recomputed, missing_calls, reads
from minidl.memory.replay import Replay
from minidl.memory.storage import RECOMPUTE
from minidl.policies import CHOICES
from minidl.policies.literature import SOLVERS

LEAST = 0.005  # of the unmanaged seconds
# Cells where another policy is faster than auto, and the seconds of both. In the first, a plan computes the value that
# two dropped concatenations read twice; on demand, without a plan, it stays after the first replay. In the other, auto
# finds no plan and runs on demand as dtr-swap does; dtr-eqclass does better.
OPEN = {("dense", 0, 0.9): (1.0200, 1.0144), ("experts", 0, 0.6): (9.962, 9.734)}
OTHERS = [name for name in (*CHOICES, "dtr-eqclass", "dtr-local") if name not in (*SOLVERS, "auto", "none", "vdnn-dyn")]


def seconds(kind, policy, share, host_bytes):
    """Of the settled step; infinite where the policy finds no room."""
    trace, machine = _trace(kind), cell.Machine(host_bytes=host_bytes)
    row = cell.run(kind, trace, machine, policy, share)
    return row.settled_s / row.unmanaged_s if row.settled_s is not None else inf


_TRACES = {}


def _trace(kind):
    if kind not in _TRACES:
        _TRACES[kind] = completed(STRANGERS[kind](1))
    return _TRACES[kind]


@pytest.mark.default(kind=["gan", "tree"], host_bytes=[None])
@pytest.mark.sampled(kind=["gan", "tree"])
@pytest.mark.parametrize("host_bytes", [None, 0], ids=["with a host", "without"])
@pytest.mark.parametrize("kind", STRANGERS)
def test_auto_is_first_on_the_steps_of_others_and_no_slower_in_more_memory(kind, host_bytes):
    more = 1.0
    for share in (0.9, 0.75, 0.6):
        ours = seconds(kind, "auto", share, host_bytes)
        best, name = min((seconds(kind, other, share, host_bytes), other) for other in OTHERS)
        if (kind, host_bytes, share) in OPEN:
            assert (ours, best) == pytest.approx(OPEN[kind, host_bytes, share], abs=LEAST / 5)
        else:
            assert ours <= best + LEAST or ours == best == inf, f"{name} at {share:.0%}"
        assert more <= ours + LEAST, f"{share:.0%} is faster than more"
        more = ours


def test_without_a_host_a_search_tries_no_swaps_and_improves_several_choices_that_nearly_fit():
    """Else the bytes of useless swaps count as much as those that they save on the device, and no plan is found."""
    row = cell.run("experts", _trace("experts"), cell.Machine(host_bytes=0), "auto", 0.75, steps=3)
    assert row.predicted_s is not None and row.settled_s == pytest.approx(row.predicted_s, rel=0.02)
    assert row.settled_s < 1.85 * row.unmanaged_s


@pytest.mark.parametrize("policy", ["auto", "recompute", "capuchin"])
def test_without_a_host_what_trains_under_another_policy_is_not_refused(policy):
    """The first iteration, on demand. Each was refused: gradients were dropped whose replay needs most of the memory,
    or what a replay holds had no room."""
    for kind, share in (("vgg", 0.75), ("u-net", 0.6), ("u-net", 0.5)):
        row = cell.run(kind, _trace(kind), cell.Machine(host_bytes=0), policy, share, steps=1)
        assert row.status == "ok", row.status


@pytest.mark.default(share=[0.5])
@pytest.mark.parametrize("share", [0.6, 0.5])
def test_a_freed_tensor_stays_exactly_if_a_dropped_one_can_be_computed_only_from_it(share, monkeypatch):
    """The engine follows the readers of a freed tensor; here each dropped tensor's whole lineage is asked."""
    asked, answers = Freeing.starts_a_replay, set()

    def checked(self, storage):
        state, answer = self.state, asked(self, storage)
        if state.impure and state.dropped and storage.call is not None and storage.status is not RECOMPUTE:
            assert answer == (not can_be_recomputed(storage, state.writing, {}) and any(
                reads(missing_calls(gone) or [], {storage}) for gone in state.missing() if gone.refs))
            answers.add(answer)
        return answer

    monkeypatch.setattr(Freeing, "starts_a_replay", checked)
    row = cell.run("u-net", _trace("u-net"), cell.Machine(host_bytes=0), "capuchin", share, steps=1)
    assert row.status == "ok" and answers == {True, False}


def test_a_chain_of_convolutions_is_not_computed_anew_for_each_concatenation(monkeypatch):
    """23 values, joined eight times; at 70% of the peak the concatenations are dropped under ``msps``. No clock."""
    trace, computed = _trace("dense"), []
    replay_call = Replay.replay_call
    monkeypatch.setattr(Replay, "replay_call", lambda self, call, *rest: (
        computed.append(call.signature.algorithms[0].seconds), replay_call(self, call, *rest))[1])
    row = cell.run("dense", trace, cell.Machine(), "msps", 0.7, steps=1)
    assert row.status == "ok" and sum(computed) < 0.4 * row.unmanaged_s  # 0.64 when each replay started from nothing


def test_where_no_other_start_leads_to_a_plan_the_dry_runs_of_policies_on_demand_do():
    """At 75% without a host every other search ended over the budget, and on demand the step takes 1.225 times the
    unmanaged one. The plan drops again what replays have computed for later calls; so does the engine, to the second.
    """
    row = cell.run("gan", _trace("gan"), cell.Machine(host_bytes=0), "auto", 0.75, steps=6)
    assert row.predicted_s is not None and row.settled_s == pytest.approx(row.predicted_s, rel=1e-6)
    assert row.settled_s < 1.2 * row.unmanaged_s


@pytest.mark.parametrize("host_bytes", [None, 0], ids=["with a host", "without"])
def test_what_fits_in_bytes_and_found_no_hole_gets_addresses_from_a_plan(host_bytes):
    """In as many bytes as the unmanaged step needs, that step took 1.0109 of its time: tensors slid to join holes."""
    row = cell.run("recurrent", _trace("recurrent"), cell.Machine(host_bytes=host_bytes), "auto", 1.0, steps=6)
    assert row.predicted_s is not None and row.settled_s <= (1.0 + LEAST) * row.unmanaged_s


@pytest.mark.parametrize(("kind", "share"), [("u-net", 0.6), ("gan", 0.75)])
def test_capuchin_gives_up_a_plan_that_takes_far_longer_than_passive_mode(kind, share):
    """Without a host its plan is partial: 14.5 times unmanaged and 2.39, in passive mode 5.56 and 1.26."""
    row = cell.run(kind, _trace(kind), cell.Machine(host_bytes=0), "capuchin", share)
    assert row.predicted_s is None and row.settled_s == pytest.approx(row.first_s, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "host_bytes", "share"), [("gan", None, 0.85), ("gan", 0, 0.85), ("vgg", 0, 0.6)])
def test_auto_takes_what_it_predicts_within_two_percent(kind, host_bytes, share):
    """The plan of the last cell drops gradients whose replay comes before a write in place."""
    row = cell.run(kind, _trace(kind), cell.Machine(host_bytes=host_bytes), "auto", share)
    assert row.settled_s == pytest.approx(row.predicted_s, rel=MISSED)


@pytest.mark.slow
def test_calls_whose_workspaces_find_no_hole_count_before_a_plan_is_followed():
    """When they did not, the plan promised 1.0165 times the unmanaged seconds and took 1.0249."""
    row = cell.run("vgg", _trace("vgg"), cell.Machine(), "auto", 0.75)
    assert row.settled_s == pytest.approx(row.predicted_s, rel=1e-3)
    assert row.settled_s <= 1.0175 * row.unmanaged_s


@pytest.mark.slow
def test_room_for_the_workspaces_that_lack_a_hole_takes_none_from_others():
    """Room was made once, for eleven workspaces. Six others then had no hole, and the step took 1.1112 of the unmanaged
    time."""
    row = cell.run("vgg", _trace("vgg"), cell.Machine(host_bytes=0), "auto", 0.83)
    assert row.settled_s == pytest.approx(row.predicted_s, rel=1e-4)
    assert row.settled_s <= 1.0797 * row.unmanaged_s


@pytest.mark.slow
def test_choices_of_others_are_asked_for_before_the_rounds_end():
    """Without them the step took 1.7044 times unmanaged, since tighter plans counted past the last round."""
    row = cell.run("vgg", _trace("vgg"), cell.Machine(host_bytes=0), "auto", 0.58)
    assert row.settled_s <= 1.601 * row.unmanaged_s


@pytest.mark.slow
def test_a_first_plan_that_misses_its_prediction_does_not_keep_others_from_being_tried():
    row = cell.run("gan", _trace("gan"), cell.Machine(), "auto", 0.86)
    assert row.settled_s <= (1.0 + 1e-4) * row.unmanaged_s  # 1.0124 under the first plan


def test_the_bench_of_these_steps_sees_what_is_slower_in_more_memory():
    more, less, other = (Cell("gan", "none", policy, share, took, None) for policy, share, took in (
        ("capuchin", 0.75, 1.12), ("capuchin", 0.65, 1.07), ("auto", 0.55, 1.01)))
    assert dips([more, less, other]) == [(more, less)]
