"""A terminal and a notebook show objects by their main facts, never by all their values."""

import json
from html.parser import HTMLParser

import pytest

from minidl import Runtime, int64, models
from minidl.ops import cross_entropy
from minidl.optim import SGD
from minidl.plan.plan import EMPTY_PLAN
from minidl.report.result import LargestOp, Result


@pytest.fixture(scope="module")
def trained():
    """A runtime, its trace and its plan after some steps of LeNet in little memory."""
    with Runtime("sim:p100", memory_budget="1.2MiB", policy="capuchin") as runtime:
        network = models.create("lenet")
        optimizer = SGD(network.parameters(), lr=0.1)
        runtime.keeps_trace = True
        for _ in range(5):
            with runtime.iteration():
                images = runtime.tensor(None, shape=(32, 1, 32, 32))
                cross_entropy(network(images), runtime.tensor(None, shape=(32,), dtype=int64)).backward()
                optimizer.step()
                optimizer.zero_grad()
        yield runtime, runtime.last_trace, runtime.plan


class Cells(HTMLParser):
    """The texts of a table's cells, in order."""

    def __init__(self, html):
        super().__init__()
        self.texts = []
        self.feed(html)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["runtime", "trace", "plan"])
def test_one_line_and_a_table_tell_the_same_facts(trained, which):
    shown = trained[which]
    facts = shown.facts()
    assert facts and "\n" not in repr(shown) and len(repr(shown)) < 250
    assert repr(shown) == f"{type(shown).__name__}({', '.join(f'{name} {value}' for name, value in facts.items())})"
    words = [word for pair in facts.items() for word in pair]
    assert Cells(shown._repr_html_()).texts == [type(shown).__name__, *words]


def test_a_trace_tells_its_calls_and_the_bytes_that_outlive_it(trained):
    runtime, trace, _ = trained
    facts = trace.facts()
    assert facts["calls"] == str(len(trace.calls)) and facts["tensors"] == str(len(trace.tensors))
    assert facts["lasting"] == "241.0 KiB"  # the parameters of LeNet: 61,706 numbers of 4 bytes


def test_a_plan_counts_its_actions_and_the_empty_plan_has_none(trained):
    plan = trained[2]
    assert int(plan.facts().get("swap-outs", 0)) + int(plan.facts().get("drops", 0)) == len(plan.evictions) > 0
    assert repr(EMPTY_PLAN) == "Plan()"


def test_a_runtime_tells_its_device_policy_and_budget(trained):
    facts = trained[0].facts()
    assert (facts["device"], facts["policy"], facts["budget"]) == ("sim:p100", "capuchin", "1.2 MiB")


def test_a_result_tells_its_main_numbers_and_its_json_all():
    result = Result("lenet", 8, "cpu", "auto", "fp32", 1 << 20, 1 << 19, 1 << 21, LargestOp("conv2d", 5), 0.5, 16.0,
                    0, 0, 0, None, None, 0, 2.5, None)
    assert repr(result) == ("Result(model lenet, batch 8, device cpu, policy auto, peak 512.0 KiB of 1.0 MiB, "
                            "unmanaged 2.0 MiB, a second 16, loss 2.5)")
    assert json.loads(result.to_json())["peak_bytes"] == 1 << 19
