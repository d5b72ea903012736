"""Many random worlds (``simulation``): in each the engine keeps its promises, and in each the same things happen again.

In a thousand worlds (``-m full``) and in a few hundred. That it would notice: ``test_planted_bugs``.
"""

import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from simulation import Report, simulate
from worlds import POLICIES

from minidl.memory.switches import Switches

FEW, MANY, BLOCK = 240, 1000, 20
TOLD = "import sys; from simulation import simulate; print(*(simulate(int(s)).digest for s in sys.argv[1:]))"

_facts: dict[int, tuple[Report, int]] = {}


def survive(seed: int) -> Report:
    """The world of a seed, named if anything is wrong in it."""
    try:
        report = simulate(seed)
    except Exception as error:
        error.add_note(f"in the world of seed {seed}")
        raise
    _facts[seed] = report, len(report.log)
    report.log.clear()  # a few hundred of them are many
    return report


@pytest.mark.default(first=range(0, 60, BLOCK))
@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_the_engine_keeps_its_promises_in_random_worlds(first):
    for seed in range(first, first + BLOCK):
        survive(seed)


@pytest.mark.slow
def test_the_worlds_contain_what_they_should():
    """Each policy, each feature on and off, each way to make room, plans followed and left; seldom a host so full that
    training ends."""
    reports = [_facts[seed][0] if seed in _facts else survive(seed) for seed in range(130)]
    assert {report.world.policy for report in reports} == set(POLICIES)
    for feature in fields(Switches):
        assert {getattr(report.world.switches, feature.name) for report in reports} == {True, False}
    count = {
        "swapped": sum(r.stats.swapped_in_bytes > 0 for r in reports),
        "recomputed": sum(r.stats.recomputed_bytes > 0 for r in reports),
        "moved": sum(r.stats.moved_bytes > 0 for r in reports),
        "stalled": sum(r.stats.stall_seconds > 0 for r in reports),
        "planned": sum(r.actions > 0 for r in reports),
        "left the plan": sum(r.diverged > 0 for r in reports),
    }
    assert min(count.values()) >= 40, count
    assert 1 <= sum(r.full and r.world.feasible for r in reports) <= 24  # and then every promise but the last was kept
    assert min(sum(len(r.world.banks) > 1 for r in reports), sum(r.world.in_passing for r in reports)) >= 8
    assert sum(not r.world.feasible for r in reports) >= 4
    assert sum(_facts[seed][1] for seed in range(120)) > 120 * 500  # pieces of work


def test_the_same_seed_gives_the_same_events_in_any_process():
    """Also where sets and dictionaries of strings have another order."""
    seeds = [str(seed) for seed in range(0, 60, 15)]
    here = [simulate(int(seed)).digest for seed in seeds]
    assert here == [simulate(int(seed)).digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests" / "support")])
    there = subprocess.run([sys.executable, "-c", TOLD, *seeds], check=True, capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "1"})
    assert there.stdout.split() == here


@pytest.mark.full
def test_a_thousand_worlds(capsys):
    start = time.perf_counter()
    for seed in range(MANY):
        survive(seed)
    with capsys.disabled():
        print(f"\n{MANY} worlds in {time.perf_counter() - start:.0f} s")
