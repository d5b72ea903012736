"""What becomes of a plan whose bytes do not all find an address: tighter ones are searched for, and compared."""

from dataclasses import replace

import pytest

from minidl.plan.costs import Costs, Limits
from minidl.plan.plan import Plan
from minidl.policies.auto import fitting
from minidl.policies.auto.progress import ON_DEMAND, Found, Progress, Tried

BUDGET = 1000  # bytes
COSTS = Costs(0.01, 0.01, 0.0)  # seconds a byte


def fitted(monkeypatch, fits_at, seconds_lost, whole=0.0, slower=0.0, enough=0.0):
    """A plan of 10 s for all of the budget, where tighter ones take so much longer for each hundredth less,
    all bytes find an address in plans of at most ``fits_at`` of it, below ``whole`` a search finds none, and calls lose
    so many seconds for each hundredth of the budget above 0.99 since their workspaces find no hole."""
    def search(trace, facts, costs, limits, begin, *, share, seed, work, temperature):
        assert (work, temperature) == (50.0, fitting.WARM)
        return made(share if share > whole else 1.0)

    def made(share):
        return Found(Plan(predicted_seconds=10.0 + 100 * (1.0 - share) * seconds_lost), share)

    monkeypatch.setattr(fitting, "search", search)
    monkeypatch.setattr(fitting, "modes_of", lambda *_: None)
    monkeypatch.setattr(fitting, "with_addresses", lambda found, trace, facts, limits, effort=1.0: (
        found, max(0, round(BUDGET * (found.share - fits_at))), slower * max(0.0, 100 * (found.share - 0.99))))
    return fitting.fitted(made(1.0), None, None, COSTS, Limits(BUDGET, 0), seed=0, work=100.0, enough=enough)


def test_a_plan_without_room_for_all_addresses_is_made_tighter_until_there_is(monkeypatch):
    found, searches = fitted(monkeypatch, fits_at=0.95, seconds_lost=0.01)
    assert (found.share, found.predicted, searches) == (pytest.approx(0.95), pytest.approx(10.05), 2)  # 3%, then 2%


def test_a_tighter_plan_must_gain_more_than_the_bytes_without_address_may_cost(monkeypatch):
    found, _ = fitted(monkeypatch, fits_at=0.95, seconds_lost=0.7)  # 50 bytes may cost 3 s, 5% less budget costs 3.5 s
    assert (found.share, found.predicted, found.promised) == (1.0, 10.0, pytest.approx(13.0))
    assert fitted(monkeypatch, fits_at=0.95, seconds_lost=0.5)[0].promised == pytest.approx(12.5)


def test_once_a_plan_promises_enough_at_most_one_tighter_plan_is_searched_for(monkeypatch):
    for enough, share, searches in ((20.0, 0.97, 1), (12.0, 0.97, 1), (10.5, 0.95, 2)):
        found, tightened = fitted(monkeypatch, fits_at=0.95, seconds_lost=0.01, enough=enough)
        assert (found.share, tightened) == (pytest.approx(share), searches)


def test_what_has_all_addresses_is_left_alone_and_what_finds_no_tighter_plan_keeps_its_own(monkeypatch):
    assert fitted(monkeypatch, fits_at=1.0, seconds_lost=0.0) == (Found(Plan(predicted_seconds=10.0), 1.0), 0)
    found, searches = fitted(monkeypatch, fits_at=0.5, seconds_lost=0.0, whole=0.98)
    assert (found.share, searches) == (1.0, 1)


def test_a_plan_whose_calls_find_no_hole_for_their_workspaces_is_made_tighter_if_that_loses_less(monkeypatch):
    found, searches = fitted(monkeypatch, fits_at=1.0, seconds_lost=0.01, slower=0.05)
    assert (found.share, found.predicted, searches) == (pytest.approx(0.99), pytest.approx(10.01), 2)
    found, searches = fitted(monkeypatch, fits_at=1.0, seconds_lost=0.06, slower=0.05)
    assert (found.share, found.predicted, searches) == (1.0, pytest.approx(10.05), 2)
    found, searches = fitted(monkeypatch, fits_at=1.0, seconds_lost=0.0, slower=0.002)  # too little to search for
    assert (found.share, searches) == (1.0, 0)


def test_bytes_without_address_count_when_plans_are_compared():
    waiting = Found(Plan(predicted_seconds=9.0), 1.0)
    progress = Progress(tried=(Tried(ON_DEMAND, (10.0,)),), waiting=waiting)
    better = Found(Plan(predicted_seconds=8.0), 1.0)
    assert progress.promises(better)
    assert not progress.promises(replace(better, charge=1.5))  # the waiting one has all addresses
    assert not replace(progress, waiting=None).promises(replace(better, charge=2.0))  # as slow as before
