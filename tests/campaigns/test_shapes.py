"""A sample of the campaign of random shapes, and all of it."""

import sys

import pytest

from tests.campaigns import shapes


@pytest.mark.slow
def test_iterations_of_random_shapes_leave_nothing_behind():
    parts = list(shapes.campaign(60, policies=("auto", "recompute")))
    assert len(parts) == shapes.PARTS
    first, last = parts[0].remembered, parts[-1].remembered
    assert first["residents"] == last["residents"] <= 4  # weights, two moments and a gradient
    assert parts[-1].resident_bytes - parts[2].resident_bytes < shapes.MOST_GROWN_BYTES


@pytest.mark.full
def test_a_hundred_thousand_iterations_of_random_shapes_are_flat(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["shapes"])
    with capsys.disabled():
        assert shapes.main() == 0
