"""Whatever remembers has a bound: programs that mark no iteration, or whose shapes never come again, may run for ever.

What is counted is entries, not bytes or seconds; a hundred thousand iterations are a campaign,
``tests.campaigns.shapes``.
"""

import gc
import random

import numpy as np
import pytest

from minidl import Runtime, executor, no_grad
from minidl.device import signatures
from minidl.errors import UserError
from minidl.memory import tracker
from minidl.memory.guided import follower as guide
from minidl.memory.guided.follower import PlanFollower
from minidl.meta import meta
from minidl.report import meter as meters
from minidl.runtime import parameter


def _small(monkeypatch, size=40):
    monkeypatch.setattr(tracker, "LONGEST", 20 * size)
    monkeypatch.setattr(guide, "LONGEST", 20 * size)
    monkeypatch.setattr(guide, "MOST_KNOWN", size)
    monkeypatch.setattr(guide, "MOST_SEEN", size)
    monkeypatch.setattr(guide, "MOST_CALLS", 20 * size)
    monkeypatch.setattr(executor, "LONGEST", 20 * size)
    monkeypatch.setattr(signatures, "SIGNATURES", size)


def _forward(runtime, w, rows):
    """Three calls."""
    return runtime.tensor(np.ones((rows, 4), np.float32)) * w + w


def _remembered(runtime):
    """How much each part of a runtime remembers."""
    known: PlanFollower = runtime.guide
    return {"log": len(runtime.tracker.log), "frees": len(runtime.tracker._frees),
            "durations": len(runtime.tracker.durations), "steps": len(known._steps), "known": len(known.entries),
            "known calls": sum(len(entry.steps) for entry in known.entries), "seen": len(known._measured),
            "signatures": len(runtime.executor.signatures.by_key), "saved": len(runtime.executor.signatures.saved)}


def _runtime(**options):
    return Runtime("cpu:virtual", policy="auto", memory_budget=1 << 16, host_memory=1 << 20, **options)


def _weight():
    w = parameter((4,))
    w.fill_(1.0)
    return w


def test_without_marks_an_iteration_is_forgotten_when_it_is_too_long(monkeypatch):
    _small(monkeypatch)
    with _runtime() as runtime, no_grad():
        w = _weight()
        for _ in range(1000):
            y = _forward(runtime, w, 3)
        assert max(_remembered(runtime).values()) <= 801
        with pytest.raises(UserError, match=r"more than 800 calls.*mark iterations"):
            runtime.trace()
        assert y.numpy()[0, 0] == 2.0 and y.timestamp == 0.0
        for _ in range(4):
            with runtime.iteration():
                _forward(runtime, w, 3)
        assert len(runtime.guide.entries) == 1 and runtime.guide.active.last is not None  # marked: planned as ever


def test_two_thousand_iterations_of_random_shapes_are_forgotten(monkeypatch):
    _small(monkeypatch)
    draw = random.Random(0)
    with _runtime() as runtime, no_grad():
        w = _weight()
        for number in range(2000):
            with runtime.iteration():
                for _ in range(draw.randint(1, 3)):
                    y = _forward(runtime, w, draw.randint(1, 60))
            if number % 500 == 499:
                found = _remembered(runtime)
                assert max(found[name] for name in ("log", "frees", "durations", "steps")) == 0
                assert found["known"] <= 40 and found["seen"] <= 40 and found["known calls"] <= 800
                assert found["signatures"] <= found["known calls"] * 2 + 80 and found["saved"] <= 80
        assert y.numpy()[0, 0] == 2.0 and runtime.guide.forgotten > 100


def test_the_sequence_followed_longest_ago_is_the_one_that_is_forgotten(monkeypatch):
    monkeypatch.setattr(guide, "MOST_KNOWN", 3)
    with _runtime() as runtime, no_grad():
        w = _weight()
        for rows in (1, 2, 1, 3, 1, 4, 1, 5):  # the first comes again and again
            for _ in range(3):
                with runtime.iteration():
                    _forward(runtime, w, rows)
        rows = [entry.steps[0][0].outputs[0].shape[0] for entry in runtime.guide.entries]
        assert rows == [1, 4, 5] and runtime.guide.forgotten == 2


def test_descriptions_live_as_long_as_somebody_has_them():
    from minidl.meta import _interned
    one = meta((1, 977))
    assert meta((1, 977), strides=(977, 1)) is one
    before = len(_interned)
    for rows in range(25_000):
        meta((rows, 3, 977))
    gc.collect()
    assert len(_interned) < before + 17_000 and meta((1, 977)) is one


def test_a_meter_remembers_the_latest_steps(monkeypatch):
    monkeypatch.setattr(meters, "REMEMBERED", 5)
    seconds = iter([0.0, *np.cumsum([100.0, 1.0, 1.0, 1.0, 1.0, 7.0, 7.0, 7.0, 7.0])])
    with Runtime("cpu", memory_budget=1 << 16) as runtime:
        meter = meters.Meter(runtime, 1, lambda: float(next(seconds)))
        for count in range(9):
            meter.add(0.0)
            assert len(meter.steps) == min(count + 1, 5)
        assert meter.median(lambda step: step.seconds) == 7.0  # of 1, 7, 7, 7, 7
        assert meter.steps[-1].seconds == 7.0
