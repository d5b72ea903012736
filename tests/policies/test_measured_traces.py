"""Traces that were measured on a GPU: ResNet-50 with 1,014 images on an H200, in TF32 and without management."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from minidl.plan.costs import Costs, Limits
from minidl.plan.trace_format import trace_from_json
from minidl.policies.auto.policy import Auto

FILE = Path(__file__).parent / "measured" / "resnet50-1014-h200.trace.json.gz"
ON_DEMAND_SECONDS = 0.39  # of a step in 16 GiB without a plan, on that GPU
COSTS = Costs(1 / 54.8e9, 1 / 54.8e9, 1e-5)  # its link
LIMITS = Limits(16352 << 20, 40 << 30)


def test_the_first_plan_is_faster_than_on_demand_mode_for_no_later_search_has_time_in_a_short_run():
    trace = trace_from_json(gzip.decompress(FILE.read_bytes()).decode())
    assert trace.seconds == pytest.approx(0.3067, abs=1e-4)
    first = Auto().plan(replace(trace, observed_seconds=ON_DEMAND_SECONDS), COSTS, LIMITS)
    assert first.plan.evictions and first.plan.predicted_seconds < 0.95 * ON_DEMAND_SECONDS
