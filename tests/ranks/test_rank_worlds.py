"""In random worlds of 2 to 8 ranks no rank waits for ever, acts alone, or has other bits than slices on one device.

In a thousand worlds (``-m full``) and in a few by default; planted bugs are found.
"""

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from rank_worlds import HARMLESS, PARTING, survive, world

from minidl.device.cpu import exchange
from minidl.device.cpu.device import CpuDevice
from minidl.memory.guided.planner import Planner
from minidl.parts.slicing.buckets import Buckets
from minidl.ranks.group import DIVIDES

FEW, MANY, BLOCK = 20, 1000, 5
pytestmark = pytest.mark.usefixtures("one_thread")


def all_survive(first, last):
    for seed in range(first, last):
        try:
            survive(seed)
        except BaseException as error:
            error.add_note(f"in the world of seed {seed}: {world(seed)}")
            raise


@pytest.mark.default(first=[0])
@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_ranks_keep_their_promises_in_random_worlds(first):
    all_survive(first, first + BLOCK)


@pytest.mark.full
@pytest.mark.parametrize("first", range(FEW, MANY, BLOCK))
def test_ranks_keep_their_promises_in_a_thousand_worlds(first):
    all_survive(first, first + BLOCK)


def test_the_worlds_contain_what_they_should():
    worlds = [world(seed) for seed in range(MANY)]
    troubles = Counter(of.trouble for of in worlds)
    assert set(troubles) == {*HARMLESS, *PARTING} and min(troubles.values()) > 40
    assert {of.count for of in worlds} == set(range(2, 9))
    assert Counter(of.divide for of in worlds).keys() == set(DIVIDES)


def _early(self, op_name, algorithm, outputs, inputs, attrs, workspace, timed=None):
    """Launch an exchange without a wait for the calls before it: it takes place now."""
    if not op_name.endswith("_ranks"):
        return LAUNCH(self, op_name, algorithm, outputs, inputs, attrs, workspace, timed)
    with patch.object(self.clock, "at", lambda time, effect: effect()):
        return LAUNCH(self, op_name, algorithm, outputs, inputs, attrs, workspace, timed)


def _skipping(self, divided, bucket):
    """Leave out every seventh sum on rank 1, and go on with this rank's own parts."""
    self.skips = getattr(self, "skips", 0) + 1
    if self._consensus.ranks.rank == 1 and not self.skips % 7:
        for y, parts in bucket:
            self._put(y, parts[-1])
    else:
        SUM(self, divided, bucket)


class Moved:
    """Ranks of which the last one has other borders between the shares of a sum, as if a plan decided them."""

    def __init__(self, ranks):
        self.ranks = ranks

    def __getattr__(self, name):
        return getattr(self.ranks, name)

    def swap(self, parts):
        if self.rank == self.count - 1 and parts[0].size:
            first, second, *others = parts
            parts = [first[:-4], np.concatenate([first[-4:], second]), *others]
        return self.ranks.swap(parts)


def _moved(*arrays, add, ranks, each):
    exchange.sum_ranks(*arrays, add=add, ranks=Moved(ranks), each=each)


def _alone(self, make):
    """Let each rank adopt the plans that its own policy makes."""
    self.consensus.decide, before = lambda made: made(), self.consensus.decide
    try:
        return ADOPT(self, make)
    finally:
        self.consensus.decide = before


LAUNCH, SUM, ADOPT = CpuDevice.launch, Buckets._exchange, Planner._adopt


@pytest.mark.parametrize("owner, name, bug, told", [
    (CpuDevice, "launch", _early, "labels from|the bits differ"), (Buckets, "_exchange", _skipping, "sum_ranks"),
    (Planner, "_adopt", _alone, "exchange 0, plans ")],
    ids=["a missing wait before an exchange", "a rank that skips", "each rank plans for itself"])
def test_a_planted_bug_is_found(owner, name, bug, told):
    with patch.object(owner, name, bug), pytest.raises(Exception, match=told):
        all_survive(0, 60)


def test_a_border_that_follows_from_a_plan_is_found():
    moved = exchange._checked("sum_ranks", _moved)
    with patch.dict(exchange.EXCHANGES, sum_ranks=moved), pytest.raises(Exception, match="the ranks sent parts of"):
        all_survive(0, 20)
