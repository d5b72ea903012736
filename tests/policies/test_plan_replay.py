"""A change of the code changes no plan: the plans of the networks of ``BATCHES`` in three budgets are those recorded.

``python -m bench.plan_replay`` makes the record and says the same as these tests. A few small networks are planned by
default, those of some seconds each are ``slow``, and the others ``full``.
"""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.support.plan_replay import (
    BUDGETS,
    POLICIES,
    USUAL,
    canonical,
    digest,
    network_of,
    read_record,
    replay,
    replays,
    write_record,
)
from minidl.device import timekeeper
from minidl.lab.training_step import BATCHES
from minidl.plan.plan import EMPTY_PLAN, Action, Eviction, Plan

RECORDED = read_record(Path(__file__).resolve().parents[2] / "bench" / "results" / "plan_replay.json")

FAST = ("mlp", "lenet", "unet-small")
SLOW = ("vgg11", "vgg13", "resnet18", "resnet34", "resnet20", "unet", "bert-tiny", "bert-mini", "bert-small")
PLAN = Plan({(1, 1): Action.DROP, (2, 1): Action.SWAP_OUT}, {(3, 1): (2, 4)}, {(2, 0): 512},
            frozenset({(4, 2), (4, 1)}), releases={(5, 1): (Eviction(2, Action.DROP),)}, algorithms={7: "direct"},
            predicted_seconds=0.25)


def marks(network):
    return () if network in FAST else pytest.mark.slow if network in SLOW else pytest.mark.full


@pytest.mark.parametrize("network", [pytest.param(name, marks=marks(name)) for name in BATCHES])
def test_every_plan_is_the_recorded_one(network):
    found = dict(replays(network))
    recorded = {name: run for name, run in RECORDED.items() if network_of(name) == network}
    # The last bits of a step's seconds depend on the order in which the clock adds them.
    assert {name: run.seconds for name, run in found.items()} == pytest.approx(
        {name: run.seconds for name, run in recorded.items()}, rel=1e-12, abs=0.0)
    assert {name: replace(run, seconds=0.0) for name, run in found.items()} == {
        name: replace(run, seconds=0.0) for name, run in recorded.items()}


def test_the_record_has_every_network_in_three_budgets_under_two_policies():
    names = [f"{network}/{BATCHES[network]}/{percent}%/{policy}" for network in BATCHES
             for percent in BUDGETS.get(network, USUAL) for policy in POLICIES]
    assert sorted(RECORDED) == sorted(names) and len(names) == 6 * len(BATCHES)


def test_no_plan_depends_on_a_clock(monkeypatch):
    before = replay("mlp", "auto", 19_954_368)  # 75% of the peak, where a search follows the first plan
    looks = []

    def hours() -> float:
        looks.append(3600.0 * len(looks))  # between two looks at a clock an hour passes
        return looks[-1]

    monkeypatch.setattr(timekeeper, "perf_counter", hours)  # the one that says how long planning took
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, name, hours)
    assert before.count == 2 and replay("mlp", "auto", 19_954_368) == before
    assert looks


@pytest.mark.parametrize("other", [
    replace(PLAN, evictions={(1, 1): Action.SWAP_OUT, (2, 1): Action.SWAP_OUT}),
    replace(PLAN, evictions=dict(reversed(PLAN.evictions.items()))),  # the order in which tensors leave
    replace(PLAN, prefetches={(3, 1): (4, 2)}), replace(PLAN, offsets={(2, 0): 1024}),
    replace(PLAN, waits=frozenset({(4, 2)})), replace(PLAN, releases={(5, 1): (Eviction(2, Action.SWAP_OUT),)}),
    replace(PLAN, algorithms={7: "gemm"}), replace(PLAN, predicted_seconds=0.25 + 2.0 ** -53),
])
def test_plans_that_differ_in_one_place_have_different_digests(other):
    assert digest([PLAN]) != digest([other]) and digest([PLAN, other]) != digest([other, PLAN])


def test_the_digest_of_a_plan_is_that_of_its_json_with_sets_in_order_and_without_what_is_empty():
    assert canonical(EMPTY_PLAN) == "{}"
    assert canonical(PLAN) == (
        '{"evictions":[[[1,1],"drop"],[[2,1],"swap out"]],"prefetches":[[[3,1],[2,4]]],"offsets":[[[2,0],512]],'
        '"waits":[[4,1],[4,2]],"releases":[[[5,1],[[2,"drop"]]]],"algorithms":[[7,"direct"]],"predicted_seconds":0.25}')


def test_a_record_is_read_as_it_was_written_in_the_order_of_the_networks_that_there_are(tmp_path):
    record = tmp_path / "record.json"
    assert read_record(record) == {}
    write_record(record, dict(reversed(RECORDED.items())) | {"no-network/1/50%/auto": RECORDED["mlp/4096/95%/auto"]})
    assert read_record(record) == RECORDED and len(record.read_text().splitlines()) == len(RECORDED) + 2
    assert list(dict.fromkeys(map(network_of, read_record(record)))) == list(BATCHES)
