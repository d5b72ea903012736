"""The pages of runs: texts about a plan are those of the step that is shown, which followed it."""

from types import SimpleNamespace

import pytest

from minidl.cli import traced
from minidl.cli.app import report_page
from minidl.cli.app.report_page import ReportPage, number_of
from minidl.plan.plan import EMPTY_PLAN, Plan


@pytest.mark.parametrize("budget", ["120%", "85%"])
def test_the_page_of_a_trace_numbers_the_plans_of_its_steps_and_explains_none_if_none_was_followed(monkeypatch, budget):
    monkeypatch.setattr(traced, "pack", lambda recording: recording)
    page = traced.packed("lenet:64", ["--memory-budget", budget, "--steps", "6"])
    followed = [step.plan > 0 for step in page.steps]
    assert followed[-1] == bool(page.remarks) == (budget == "85%") and not followed[0]
    assert [step.predicted_seconds is not None for step in page.steps] == followed


@pytest.mark.parametrize("follows", [True, False])
def test_a_step_that_followed_no_plan_is_not_explained_by_an_earlier_one(monkeypatch, follows):
    monkeypatch.setattr(report_page, "remarks", lambda *known: [(7, "it leaves")])
    monkeypatch.setattr(report_page, "StepRecorder", lambda runtime: SimpleNamespace(recorded=SimpleNamespace(
        trace=None, subjects=lambda *names: (), events=(), stays=(), began_s=0.0)))
    monkeypatch.setattr(report_page, "Recording", lambda *facts: SimpleNamespace(told=facts[9], check=lambda: None))
    monkeypatch.setattr(report_page, "pack", lambda recording: recording.told)
    monkeypatch.setattr(ReportPage, "_facts", lambda *meter: [])
    page = ReportPage(SimpleNamespace(budget_bytes=1, host_bytes=1, ranks=None),
                      SimpleNamespace(of=lambda trace: {}, owned={}))
    earlier, now = SimpleNamespace(plan=Plan()), SimpleNamespace(plan=Plan())
    page.note(earlier)
    page.note(now if follows else None)
    meter = SimpleNamespace(steps=[SimpleNamespace(seconds=1.0, grown=SimpleNamespace(
        swapped_out_bytes=0, swapped_in_bytes=0, recomputed_bytes=0))] * 2)
    assert page.packed("", meter, 1, (None, now if follows else earlier)) == [[(7, "it leaves")] if follows else []]


def test_plans_have_numbers_in_the_order_of_their_first_steps():
    plans: list[Plan] = []
    first, second = Plan(), Plan()
    assert [number_of(plan, plans) for plan in (EMPTY_PLAN, first, second, first)] == [0, 1, 2, 1]
